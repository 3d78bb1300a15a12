"""A certificate authority for one test, and a server's certificate for 127.0.0.1 from it."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from pathlib import Path

_EXTENSIONS: Final = "subjectAltName=IP:127.0.0.1\nbasicConstraints=CA:FALSE\n"


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files."""

    ca: Path
    certificate: Path
    key: Path

    def server_options(self) -> tuple[str, ...]:
        """Return words of a server's command line; clients need no certificate."""
        own = ("--tls-cert-file", str(self.certificate), "--tls-key-file", str(self.key))
        return (*own, "--tls-ca-cert-file", str(self.ca), "--tls-auth-clients", "no")


def make_certificates(folder: Path) -> Certificates:
    """Write an authority and a server's certificate; skips the test where openssl is missing."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    made = Certificates(folder / "ca.pem", folder / "server.pem", folder / "server.key")
    ca_key, request = folder / "ca.key", folder / "server.csr"
    extensions = folder / "server.ext"
    extensions.write_text(_EXTENSIONS)
    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    _openssl("req", "-x509", *new_key, "-keyout", ca_key, "-out", made.ca, "-days", 2, "-subj", "/CN=test CA")
    _openssl("req", "-new", *new_key, "-keyout", made.key, "-out", request, "-subj", "/CN=redis")
    signer = ("-CA", made.ca, "-CAkey", ca_key, "-CAcreateserial", "-days", 2, "-extfile", extensions)
    _openssl("x509", "-req", "-in", request, "-out", made.certificate, *signer)
    return made


def _openssl(*words: object) -> None:
    subprocess.run(["openssl", *map(str, words)], check=True, capture_output=True)
