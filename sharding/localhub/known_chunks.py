"""Tell clients which chunks the Xet store has (https://huggingface.co/docs/xet/deduplication), in a shard.

Held to hf-xet 1.8.0, whose own store for tests gives the same answer.
"""

import struct
from collections.abc import Iterator

from blake3 import blake3

from sharding.localhub.store import parse_shard

_RECORD_BYTES = 48
_FOOTER_BYTES = 200
_END = b"\xff" * 32 + bytes(16)
_ASKED_FOR = 1024  # Clients ask about one chunk in so many, and about the first chunk of every file.


def chunks_to_ask_for(shard: bytes) -> frozenset[str]:
    """Return the hashes of the chunks of an uploaded shard that clients may ask for."""
    starts = {(file.segments[0].xorb, file.segments[0].first) for file in parse_shard(shard) if file.segments}
    hashes = set()
    xorb, first = "", 0
    for place, is_chunk in _records(shard):
        words = struct.unpack_from("<4Q", shard, place)
        name = "".join(f"{word:016x}" for word in words)
        if not is_chunk:
            xorb, first = name, place + _RECORD_BYTES
        elif words[3] % _ASKED_FOR == 0 or (xorb, (place - first) // _RECORD_BYTES) in starts:
            hashes.add(name)
    return frozenset(hashes)


def keyed_shard(shard: bytes, key: bytes, created: int, expires: int) -> bytes:
    """Return the xorbs of an uploaded shard without its files, valid between two times in seconds since 1970. Chunks
    are hashed with a key of 32 bytes, which the answer states. So only those who have a chunk recognize it."""
    records = bytearray()
    for place, is_chunk in _records(shard):
        record = shard[place : place + _RECORD_BYTES]
        records += blake3(record[:32], key=key).digest() + record[32:] if is_chunk else record
    start = 2 * _RECORD_BYTES  # after the header and an empty list of files
    end = start + len(records) + _RECORD_BYTES
    # Three empty tables of 0 entries follow the lists. A client then reads the lists.
    places = struct.pack("<9Q", 1, _RECORD_BYTES, start, end, 0, end, 0, end, 0)
    footer = places + key + struct.pack("<2Q", created, expires) + bytes(72) + struct.pack("<Q", end)
    return shard[:40] + struct.pack("<Q", _FOOTER_BYTES) + _END + records + _END + footer


def _records(shard: bytes) -> Iterator[tuple[int, bool]]:
    """Yield where each record of a xorb or a chunk starts, and whether it is a chunk's. A xorb has one record with its
    hash and number of chunks, then one record per chunk. A hash of ones ends the list."""
    place = next(
        place for place in range(_RECORD_BYTES, len(shard), _RECORD_BYTES) if shard.startswith(_END[:32], place)
    )
    place += _RECORD_BYTES
    while place < len(shard) and not shard.startswith(_END[:32], place):
        (chunks,) = struct.unpack_from("<I", shard, place + 36)
        yield place, False
        for _ in range(chunks):
            place += _RECORD_BYTES
            yield place, True
        place += _RECORD_BYTES
