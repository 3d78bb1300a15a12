"""The entry point of `tenure`: failures become one line on stderr and exit code 1, or 2 for wrong usage."""

import os
import sys

from services.cli.app import app
from services.cli.failure import Failure, WrongUsage
from services.cli.plain import plain
from services.permits.errors import PermitError
from services.settings.load import SettingsError


def main() -> None:
    """Run the command line. Ends the process with 0, 1 (failed) or 2 (wrong usage)."""
    try:
        app(obj=os.environ)
    except (Failure, WrongUsage, PermitError, SettingsError) as error:
        sys.stderr.write(f"tenure: {plain(' '.join(str(error).split()))}\n")
        sys.exit(2 if isinstance(error, WrongUsage) else 1)


if __name__ == "__main__":
    main()
