"""Which class is admitted next."""
