"""`python -m flashedge` is the `flashedge` command."""

from flashedge.cli.main import run

if __name__ == "__main__":
    run()
