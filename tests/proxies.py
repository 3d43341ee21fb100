"""What stands between a machine and a Hub in a company: a proxy that asks for a login, and one that reads TLS."""

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


def certificates(folder: Path, host: str = "127.0.0.1", days: int = 1) -> tuple[Path, Path]:
    """Write the certificate of a company, which nobody trusts, and one of its making for `host`, with its key."""
    now, names = datetime.now(UTC), [x509.IPAddress(ip_address(host)), x509.DNSName("localhost")]
    keys = [ec.generate_private_key(ec.SECP256R1()) for _ in range(2)]
    company, machine = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("A company", "Here"))
    pems = []
    for name, key, more in (
        (company, keys[0], [x509.BasicConstraints(ca=True, path_length=None)]),
        (machine, keys[1], [x509.SubjectAlternativeName(names), x509.BasicConstraints(ca=False, path_length=None)]),
    ):
        made = x509.CertificateBuilder(company, name, key.public_key(), len(pems) + 1)
        made = made.not_valid_before(now - timedelta(days=3)).not_valid_after(now + timedelta(days if pems else 1))
        for extension in more:
            made = made.add_extension(extension, critical=False)
        pems.append(made.sign(keys[0], hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    formats = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    trusted, shown = folder / "company.pem", folder / "machine.pem"
    trusted.write_bytes(pems[0])
    shown.write_bytes(pems[1] + keys[1].private_bytes(*formats))
    return trusted, shown


@contextmanager
def _listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Have `serve` take every connection, each in a thread; give the port."""

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError):
            serve(connection)

    def listen() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=one, args=[connection], daemon=True).start()

    with socket.create_server(("127.0.0.1", 0), backlog=100) as listener:
        thread = threading.Thread(target=listen, daemon=True)
        thread.start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
    thread.join()


def _pump(one: socket.socket, other: socket.socket) -> None:
    try:
        while data := one.recv(1 << 16):
            other.sendall(data)
    except OSError:
        pass
    finally:
        for end in (one, other):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@contextmanager
def behind_tls(address: str, folder: Path, **of: Any) -> Iterator[tuple[str, Path]]:
    """Serve what is at `address` over TLS; give that address, and the certificate to trust."""
    trusted, shown = certificates(folder, **of)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown)
    behind = urlsplit(address)

    def serve(connection: socket.socket) -> None:
        place = behind.hostname or "", behind.port or 0
        with socket.create_connection(place) as outer, context.wrap_socket(connection, server_side=True) as inner:
            threading.Thread(target=_pump, args=[outer, inner], daemon=True).start()
            _pump(inner, outer)

    with _listening(serve) as port:
        yield f"https://127.0.0.1:{port}", trusted


@contextmanager
def proxy(address: str) -> Iterator[tuple[str, list[str]]]:
    """Forward every request over HTTP, whatever its host, to what is at `address`; give the place, and what was asked.

    What was asked is the first line of each request and its login, as in "GET http://hub/ Basic bWU6c2VjcmV0".
    """
    behind = urlsplit(address)
    asked = list[str]()

    def serve(connection: socket.socket) -> None:
        with socket.create_connection((behind.hostname or "", behind.port or 0)) as outer:
            head = b""
            while b"\r\n\r\n" not in head:
                if not (data := connection.recv(1 << 16)):
                    return
                head += data
            head, _, body = head.partition(b"\r\n\r\n")
            first, *lines = head.decode("latin-1").split("\r\n")
            method, url, version = first.split(" ")
            fields = [line for line in lines if not line.lower().startswith(("proxy-", "connection:"))]
            login = [line.split(": ", 1)[1] for line in lines if line.lower().startswith("proxy-authorization")]
            asked.append(" ".join([method, url, *login]))
            target = url.partition("://")[2].partition("/")[2]
            # One request a connection, so that nothing after it needs to be read.
            fields.append("Connection: close")
            outer.sendall("\r\n".join([f"{method} /{target} {version}", *fields, "", ""]).encode("latin-1") + body)
            threading.Thread(target=_pump, args=[connection, outer], daemon=True).start()
            while data := outer.recv(1 << 16):
                connection.sendall(data)

    with _listening(serve) as port:
        yield f"127.0.0.1:{port}", asked
