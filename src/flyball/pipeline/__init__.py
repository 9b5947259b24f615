"""The data pipeline on Spark: traces in, tables, models and reports out.

It exchanges only files with the rest of Flyball, and imports nothing from it but its errors.
"""
