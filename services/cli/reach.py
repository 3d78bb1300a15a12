"""The way from a command to Redis: one short-lived connection, and errors in words."""

import getpass
import os
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from services.cli.failure import Failure, WrongUsage, address, why
from services.permits.admin import Admin
from services.permits.connect import connect
from services.permits.errors import BadLimits, BadName, NotFound, Unavailable, Unusable
from services.permits.store import Store
from services.settings.schema import Settings
from services.settings.seed import lease_times


@asynccontextmanager
async def open_store(settings: Settings) -> AsyncIterator[Store]:
    """Yield a store on a connection of its own. What Redis refuses becomes a Failure."""
    try:
        client = connect(settings.redis.url, max_connections=2)
    except Unusable as error:
        raise Failure(str(error)) from error
    try:
        yield Store(client, prefix=settings.redis.prefix, times=lease_times(settings))
    except Unavailable as error:
        raise Failure(unreachable(settings, error)) from error
    finally:
        await client.aclose()


@asynccontextmanager
async def administer(settings: Settings) -> AsyncIterator[Admin]:
    """Yield the administration of one Redis; what it refuses becomes a Failure or WrongUsage."""
    async with open_store(settings) as store:
        try:
            yield Admin(store, who=_who())
        except (BadLimits, BadName) as error:
            raise WrongUsage(str(error)) from error
        except NotFound as error:
            raise Failure(str(error)) from error


def unreachable(settings: Settings, error: Unavailable) -> str:
    """Say that Redis does not answer, where it should be, and what to do."""
    where = address(settings.redis.url)
    return f"Redis at {where} does not answer ({why(error)}): start it, or correct redis.url"


def _who() -> str:
    """Name the person at this terminal for the event stream."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        # A container's user need not have a name.
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
