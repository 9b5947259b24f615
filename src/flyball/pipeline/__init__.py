"""The data pipeline on Spark: traces in, tables, models and reports out.

It meets the rest of Flyball through files only and imports nothing of it but its errors.
"""
