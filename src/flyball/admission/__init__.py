"""Admission control: requests wait before an application while the database behind it is busy enough."""
