"""All that people read of some results, in one text for each. Made again by `python -m tests.report.golden`."""

import io
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from html import unescape
from pathlib import Path
from typing import Any

from rich.console import Console

from sharding.cli.terminal import Terminal
from sharding.core.errors import Remedy, SourceError
from sharding.core.events import Planned, Published, Verified
from sharding.core.options import Engine, Options
from sharding.core.protocols import Discarded
from sharding.core.recipe import Recipe
from sharding.core.values import Finding, Tensor, TiedTensor
from sharding.core.verification import UNCHECKED, Difference, Evidence, Mismatch, Verification
from sharding.desk.forecast import Forecast
from sharding.desk.jobs import JobRecord, JobRequest, Told, status_of
from sharding.formats.model_card import parse_card
from sharding.loading.costs import ClassicCost, Comparison, LoadCost, Prediction, Side
from sharding.loading.costs import Verdict as Costs
from sharding.loading.verdict import judge
from sharding.page.comparison_panels import differences_panel, likeness_panel, outcome_panel
from sharding.page.panels import devices_panel, findings_panel, problem
from sharding.page.result_panels import Places, details_panel, result_panel
from sharding.page.serving.pictures import certificate_of
from sharding.planning.devices import DeviceLoad, DevicePlan
from sharding.planning.plan import sentence
from sharding.recipes.cast import Cast
from sharding.recipes.low_rank import LowRank, Update
from sharding.recipes.stored import Stored
from sharding.report.card import write_card
from sharding.report.files import Result as Shown
from sharding.report.schema import FleetCost, NodeCost
from sharding.verify.structure import Claims, compare_structure
from sharding.verify.trust import Level, Trust
from tests.recipes.checkpoints import fp8
from tests.report.results import (
    BASE,
    CAST,
    COPY,
    DEQUANTIZED,
    FILES,
    FOLDER,
    LIMIT,
    MERGE,
    OUT,
    UNDONE,
    Result,
    checkpoint,
    made,
)

PLACE = Path(__file__).parent / "golden"
HUB = "https://hub"
RESULT = "https://page/?result=me/copy"
PLACES = Places("me/copy", HUB, RESULT, "e" * 40)
FORECAST = Forecast(150, 300, 10**8, 0, "As measured.")
LEVELS: tuple[Level, ...] = ("made-here", "read-now", "fits", "unreached", "claims", "contradicted")
BLOCKS = r"</?(?:[dou]l|d[dt]|p|h\d|li|div|table|t[rdh]|summary|caption|pre|button|section|article|br)\b[^>]*>"

Parts = Iterable[tuple[str, str]]
"""Titles and texts."""


def page(html: str, *, has_code: bool = False) -> str:
    """The text of a panel, a line for each block, without pictures, and without code to copy if it is not wanted."""
    html = re.sub(r"<(svg|style|script)\b.*?</\1>", "", html, flags=re.DOTALL)
    html = re.sub(r"<pre.*?</pre>", lambda code: code[0].replace("\n", "<br>") * has_code, html, flags=re.DOTALL)
    blocks = re.split(BLOCKS, " ".join(html.split()))
    return "\n".join(filter(None, (unescape(re.sub("<[^>]*>", "", block)).strip() for block in blocks)))


def terminal(show: Callable[[Terminal], object]) -> str:
    """What `show` shows to a person, results and remarks together."""
    console = Console(file=(shown := io.StringIO()), width=110, soft_wrap=True, force_terminal=False)
    with Terminal(console, console) as view:
        show(view)
    return re.sub(r" +$", "", shown.getvalue(), flags=re.M).strip()


def of_job(result: Result, level: Level, before: str = "", *, is_private: bool = False) -> Parts:
    """What is said of a result everywhere. The page believes it as `level` says."""
    report = result.report

    def show(view: Terminal) -> None:
        published = Published(report.destination, f"{HUB}/me/copy", "Delete the branch.")
        for event in (Planned(result.source, result.plan), Verified(report.verification), published, report):
            view.event(event)

    yield "terminal", terminal(show)
    yield "card", write_card(report, parse_card(before), HUB, RESULT, is_private=is_private).rstrip()
    trust = Trust(level, ("It is so.",), made=report.plan.made)
    panel = result_panel(report, trust, PLACES, FORECAST if level == "fits" else None)
    yield "page", page(panel + details_panel(report, PLACES, trust), has_code=level in ("made-here", "claims"))


def of_proofs(*proofs: Verification) -> Parts:
    for number, proof in enumerate(proofs, 1):
        yield f"terminal {number}", terminal(lambda view, proof=proof: view.verification(proof))  # type: ignore[misc]


def proof(**fields: Any) -> Verification:
    return replace(Verification(6, 2400, 2.0, Evidence("both"), (), unchecked=UNCHECKED), **fields)


def trained() -> Parts:
    result = made(source=checkpoint(of_ranks=True, beside=(BASE,)))
    report = replace(result.report, source=replace(result.report.source, in_pieces=4))
    yield from of_job(replace(result, report=report), "fits")


def stages() -> Parts:
    cut = made(Options(LIMIT, strategy="pp:2"))
    first, second = cut.plan.stages
    tied = TiedTensor("model.embed_tokens.weight", first.files[0], ("lm_head.weight",))
    parts = (first, replace(second, also_needs=(tied,)))
    report = replace(cut.report, plan=replace(cut.report.plan, stages=parts))
    yield from of_job(Result(cut.source, replace(cut.plan, stages=parts), report), "made-here")
    yield from of_job(made(Options(LIMIT, strategy="pp:2", rank=1), destination=OUT), "read-now")


def loads() -> Parts:
    phases = {"import": 1.0, "load": 2.0, "forward": 0.5, "tokens": 0.5}
    cost = LoadCost("loaded", "", "from_pretrained", None, None, "cold", phases, 5 * 10**9, 10**9, 6 * 10**9, files=2)
    cost = replace(cost, format="safetensors")
    verdict, half = Costs("gain", "file-size", "The copy takes less memory: 4 GB."), Prediction(10**9, 10**9)
    classic = ClassicCost(60.0, 8 * 10**9, 4 * 10**9)
    runs = (cost, replace(cost, seconds={"load": 9.0}, peak_anon_bytes=10**9), replace(cost, peak_file_bytes=0))
    how, sides = ("from_pretrained", None, True, None), dict[Side, Prediction](original=half, sharded=half)
    measured = Comparison(*how, runs, (cost,) * 3, verdict, sides, "a machine", "", classic)
    lost = replace(measured, sharded=(cost, replace(cost, outcome="out-of-memory"), cost), with_mapping=False)
    lost = replace(lost, dtype_asked="float16", memory_limit_bytes=4 * 10**9)
    none = replace(measured, original=(), sharded=(), reason_not_measured="The disk is full.", dtype_asked="bf16")
    none = replace(none, classic=ClassicCost(None, 10**9, 10**9, "The disk is full."))
    alone = replace(measured, original=(), verdict=judge((), (cost,) * 3, "It is in the pieces of a training run."))
    alone = replace(alone, predicted={"sharded": half}, classic=None)
    for comparison in (measured, none, alone):
        yield "terminal", terminal(lambda view, comparison=comparison: view.comparison(comparison))  # type: ignore[misc]
        engine: Engine = "classic" if comparison.classic else "stream"
        yield from of_job(made(engine=engine, comparison=comparison), "read-now")
    yield "terminal", terminal(lambda view: view.comparison(lost))


def devices() -> Parts:
    loads = DeviceLoad("cuda:0", 40_000, 30_000, ("a", "b"), ("f",)), DeviceLoad("cpu", None, 20, ("c",), ("f", "g"))
    fits = DevicePlan("LlamaForCausalLM", ("LlamaDecoderLayer",), 3, loads, {"a": "cuda:0"}, "from_pretrained('x')")
    disk = replace(fits, device_map={"a": "disk"}, devices=(*loads, DeviceLoad("disk", None, 10_000, ("d",), ("f",))))
    for plan in (fits, disk, replace(disk, trouble="No code can load it.", snippet="")):
        yield "terminal", terminal(lambda view, plan=plan: view.event(plan))  # type: ignore[misc]
        yield "page", page(devices_panel(plan, "" if plan.trouble else "me/copy"), has_code=True)


def differences() -> Parts:
    names = [tensor.name for tensor in checkpoint().tensors]
    numbers = (
        Difference(names[0], 0.5, 0.25, 0.75, 0.5),
        Difference(names[1], 0.0, 0.0, 1.0, 1.0, "the numbers are equal, the bytes differ"),
        Difference(names[2], note="only in the first"),
    )
    wrong = tuple(Mismatch(name, "its bytes differ") for name in names[:4])
    compared = proof(mismatches=wrong, differences=numbers)
    yield from of_proofs(compared, proof(mismatches=wrong))
    request = JobRequest("acme/model", "me/copy", Options(), kind="verify", of_result=False)
    status = status_of(JobRecord("x", "me", request, 1, 0.0, "failed"), Told(verification=compared))
    yield "page", page(differences_panel(status, names, HUB, "https://page/"))
    bad = made(mismatches=wrong)
    yield "page of a result", page(result_panel(bad.report, Trust("fits", ()), PLACES))


def same() -> Parts:
    original = checkpoint()
    copy = checkpoint(replace(COPY, revision="b" * 40))
    hashed = tuple(replace(file, sha256="0" * 64) for file in original.weight_files)
    half = tuple(tensor._replace(dtype="F16") for tensor in copy.tensors)
    first, *others = copy.tensors
    cases = {
        "same files": compare_structure(replace(original, weight_files=hashed), replace(copy, weight_files=hashed)),
        "same structure": replace(compare_structure(original, copy), claims=Claims(5, ("lm_head.weight",))),
        "converted": replace(compare_structure(original, replace(copy, tensors=half)), claims=Claims(6, ())),
        "different": compare_structure(original, replace(copy, tensors=(first._replace(shape=(100,)), *others[:-1]))),
        "other models": compare_structure(original, replace(copy, tensors=(first._replace(name="x"),))),
    }
    for title, likeness in cases.items():
        trust = Trust("contradicted" if likeness.verdict == "different" else "fits", ("It is so.",))
        yield title, page(likeness_panel(likeness, trust, HUB))
    for level, caveats in (("read-now", ()), ("read-now", ("Not all is known.",)), ("contradicted", ())):
        panel = likeness_panel(cases["converted"], Trust(level, (), caveats), HUB)  # type: ignore[arg-type]
        yield f"{level}{' with caveats' if caveats else ''}", page(panel)
    request = JobRequest("acme/model", "me/copy", Options(), kind="verify")
    told = Told(verification=proof(made=(MERGE,), within=2))
    status = status_of(JobRecord("x", "me", request, 1, 0.0, "done"), told)
    yield "read", page(outcome_panel(status, HUB, "https://page/"))


def certificates() -> Parts:
    caveat = ("The copy holds 1 more weight file.",)
    merged, of_folder = (
        made(Options(LIMIT, dtype="bf16"), made=(MERGE,)),
        made(source=checkpoint(FOLDER), unstated=True),
    )
    for result in (made(), merged, of_folder):
        for trust in (*(Trust(level, ()) for level in LEVELS), Trust("read-now", (), caveat)):
            trust = replace(trust, made=result.report.plan.made)
            shown = certificate_of(Shown("me/copy", "e" * 40, (), result.report), trust)
            steps = (f"{'x' if step.is_reached else '-'} {step.title}: {step.words}" for step in shown.steps)
            lines = (f"{shown.verdict} ({shown.tone})", shown.sentence, " · ".join(shown.facts), *steps, shown.note)
            yield f"{trust.level}{' with caveats' if trust.caveats else ''}", "\n".join(filter(None, lines))


def stated() -> Parts:
    """What is said of a copy that was only sampled: by the page that made it, by another, and after a check."""
    cases: tuple[tuple[Evidence, Level], ...]
    cases = (STATED, "stated"), (replace(STATED, xet=False), "fits"), (STATED, "read-now")
    for evidence, level in cases:
        result = made(Options(LIMIT, dtype="bf16"), made=(MERGE,), evidence=evidence)
        trust = Trust(level, ("It is so.",), made=result.report.plan.made)
        if level == "stated":
            yield from of_job(result, level)
        else:
            yield "page", page(result_panel(result.report, trust, PLACES))
        shown = certificate_of(Shown("me/copy", "e" * 40, (), result.report), trust)
        steps = (f"{'x' if step.is_reached else '-'} {step.title}: {step.words}" for step in shown.steps)
        yield "certificate", "\n".join((f"{shown.verdict} ({shown.tone})", shown.sentence, *steps, shown.note))
    wrong = (Mismatch(FILES[0], "the Hub does not state the size and hashes of what was sent"),)
    yield from of_proofs(proof(evidence=replace(STATED, sampled=0), mismatches=wrong, unchecked=()))


def read() -> Parts:
    findings = (
        Finding("info", "y", "A file is left out."),
        Finding("warning", "x", "One is large.", "Choose another size."),
    )
    source = checkpoint(findings=findings)
    yield "terminal", terminal(lambda view: view.event(source))
    yield "page", page(findings_panel(findings))
    at = Stored(0, FILES[0], 100, 500)
    update = Update(at, at, "F32", "F32", 8, 0.5, 0, 10)
    recipes: dict[str, Recipe] = {
        "stored": at,
        "cast": Cast(at, "F32", "BF16"),
        "dequantized": fp8(at, at, "F32", (10, 10), (128, 128), "BF16"),
        "merged": LowRank(at, "F32", (10, 10), (update, update)),
        "DoRA": LowRank(at, "F32", (10, 10), (update,), magnitude=at, magnitude_dtype="F32"),
    }
    shown = {name: sentence(Tensor(name, "F32", (10, 10), recipe)) for name, recipe in recipes.items()}
    yield "recipes", terminal(lambda view: view.event(((), None, shown)))


def refused() -> Parts:
    hint = f"Accept its terms on {HUB}/acme/model, then sign in again. Use --token."
    error = SourceError("acme/model is gated.", hint, Remedy("accept_terms", f"{HUB}/acme/model"))
    yield "terminal", terminal(lambda view: view.error(error))
    yield "page", page(problem(error))
    for discarded in (Discarded(False), Discarded(True), Discarded(True, True, "The branch stays.")):
        yield "discarded", terminal(lambda view, discarded=discarded: view.event(discarded))  # type: ignore[misc]


def fleet() -> FleetCost:
    nodes = tuple(NodeCost(f"10.0.0.{n}", 3, 400, 5.0, 60_000_000) for n in range(2))
    return FleetCost("ray 2.60.0", nodes, (FILES[0],))


LOST = f"acme/model@{'a' * 40}"
STATED = Evidence("stated", sampled=19, xet=True)
CARD = "---\nlicense: other\nlicense_link: LICENSE.md\nbase_model: some/body\n---\n# Mine\n"
CASES: dict[str, Callable[[], Parts]] = {
    "plain": lambda: of_job(made(), "made-here", before=CARD),
    "by-many-machines": lambda: of_job(made(fleet=fleet(), unstated=True), "fits"),
    "cast": lambda: of_job(
        made(Options(LIMIT, dtype="fp16", allow_overflow=True), overflowed={"a": 3, "b": 1200}),
        "read-now",
        is_private=True,
    ),
    "single-file": lambda: of_job(made(Options("single-file"), checkpoint(FOLDER), destination=OUT), "claims"),
    "merged": lambda: of_job(made(made=(MERGE,)), "fits", is_private=True),
    "merged-without-effect": lambda: of_job(made(Options(LIMIT, dtype="bf16"), made=(UNDONE,)), "read-now"),
    "dequantized": lambda: of_job(made(made=(DEQUANTIZED,)), "fits"),
    "training-run": trained,
    "unreached": lambda: of_job(made(unreached=(LOST,)), "unreached", before=CARD),
    "stages": stages,
    "loads": loads,
    "devices": devices,
    "proofs": lambda: of_proofs(
        proof(),
        proof(made=(CAST,), unstated=True, unreached=(LOST,)),
        proof(made=(DEQUANTIZED,)),
        proof(made=(MERGE,), within=2),
        proof(made=(MERGE,), undecided=1),
        proof(made=(MERGE, CAST)),
    ),
    "differences": differences,
    "same": same,
    "stated": stated,
    "certificates": certificates,
    "read": read,
    "refused": refused,
}


def text(name: str) -> str:
    """All that is said in a case."""
    return "\n\n".join(f"=== {title}\n\n{said}" for title, said in CASES[name]()) + "\n"


if __name__ == "__main__":
    PLACE.mkdir(exist_ok=True)
    for old in PLACE.iterdir():
        old.unlink()
    for name in CASES:
        (PLACE / f"{name}.txt").write_text(text(name))
