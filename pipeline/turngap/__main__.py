"""`python -m turngap`."""

from turngap.cli import main

if __name__ == "__main__":
    main()
