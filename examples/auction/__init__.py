"""An auction site after RUBiS, the application for admission control: Starlette with a connection pool to
PostgreSQL.
"""
