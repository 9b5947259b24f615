"""`python -m flyball` is the `flyball` command."""

from flyball.cli.main import app

if __name__ == "__main__":
    app()
