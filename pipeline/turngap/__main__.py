"""`python -m turngap`, and the command `turngap`."""

import sys


def main() -> None:
    """Run the command line; if turngap's own dependencies are missing, say what to do."""
    try:
        from turngap.cli import main as run
    except ModuleNotFoundError as e:
        from turngap.backends.needs import not_installed

        if (missing := not_installed(e)) is None:
            raise
        sys.stderr.write(f"error: {missing.message}\n  {missing.hint}\n")
        sys.exit(missing.exit_code)
    run()


if __name__ == "__main__":
    main()
