"""An answer about a chunk that the store has says nothing of others."""

from collections.abc import Callable

from sharding.localhub.known_chunks import chunks_to_ask_for
from tests.localhub.conftest import Server, payload

BYTES = 3_000_000


def test_an_answer_about_a_chunk_reveals_no_hash_of_another(served: Callable[..., Server]) -> None:
    over_http = served("--xet-over-http")
    shards = over_http.folder / "xet-store" / "xet" / "xorbs" / "shards"
    over_http.api().create_repo("alice/known")
    before = set(shards.glob("*.mdb"))
    over_http.put("alice/known", "w.bin", payload(BYTES, 4))
    access = over_http.ask("GET", "/api/models/alice/known/xet-read-token/main").json()
    address, token = f"{access['casUrl']}/v1/chunks/default", access["accessToken"]
    (shard,) = (path.read_bytes() for path in set(shards.glob("*.mdb")) - before)
    answers = [over_http.ask("GET", f"{address}/{name}", token=token) for name in chunks_to_ask_for(shard)]
    assert answers and {answer.status for answer in answers} == {200}
    known = {shard[place : place + 32] for place in range(48, len(shard), 48)} - {b"\xff" * 32}
    told = {answer.body[place : place + 32] for answer in answers for place in range(48, len(answer.body), 48)}
    assert len(known) > BYTES // (128 << 10)
    assert len(known & told) == 1  # the xorb
    assert over_http.ask("GET", f"{address}/{'0' * 64}", token=token).status == 404
    assert over_http.ask("GET", f"{address}/{'0' * 64}", token="xet_forged").status == 401
