"""Decide which shard holds which tensor of a copy, and how each is made."""

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial

from sharding.core.dtypes import torch_name
from sharding.core.errors import UsageError
from sharding.core.extras import require
from sharding.core.hints import ModelHints
from sharding.core.made import without_effect
from sharding.core.options import Options
from sharding.core.protocols import FileFormat
from sharding.core.text import count, format_bytes, json_file, name_some
from sharding.core.values import Component, Content, Finding, Plan, Shard, ShardRecord, Stage, Tensor
from sharding.formats.file_formats import FORMATS, format_of
from sharding.formats.names import CONFIG_NAME
from sharding.formats.quantization import QUANTIZERS_FILES, configured
from sharding.planning import order
from sharding.planning.cast import stated_dtypes
from sharding.planning.draft import Draft
from sharding.planning.gguf import cut_model, refuse_changes, remarks
from sharding.planning.steps import ASKS, Asks, drafted
from sharding.recipes.low_rank import needs_torch


def planned(content: Content, options: Options, asks: Asks = ASKS) -> Plan:
    """Return the plan for a copy of `content` with `options`. Raises UsageError, SourceError and Refused."""
    if content.format == "gguf":
        refuse_changes(options)
        make = partial(plan_shards, content.tensors, replace(options, order="stored"), content.components)
        models: Plan = asks.run("plan", make)
        return replace(models, sources=content.inputs, format="gguf")
    draft = drafted(content, options, asks)
    if any(needs_torch(tensor.recipe) for tensor in draft.tensors):
        require("Merging a DoRA")
    plan: Plan = asks.run("plan", partial(_laid_out, draft))
    return plan


def as_read(content: Content, plan: Plan) -> Content:
    """Return `content` with only the files of other inputs that `plan` reads. A LoRA that is saved alone is PEFT's."""
    if any(change.kind == "as" for change in plan.made):
        content = replace(content, library="peft", components=plan.components)
    if not content.others:
        return content
    reads = {file for tensor in plan.tensors for file in tensor.recipe.files() if file[0]}
    others = (
        replace(other, weight_files=tuple(file for file in other.weight_files if (file.source, file.path) in reads))
        for other in content.others
    )
    return replace(content, others=tuple(others))


def _laid_out(draft: Draft) -> Plan:
    content, options, tensors, findings = draft.content, draft.options, draft.tensors, draft.findings
    # After a cast, because the cast goes by transformers' hints alone.
    inside = order.by_folder(tensors, draft.hints) if draft.hints else {}
    hints = {folder: order.with_companions(known, inside[folder]) for folder, known in draft.hints.items()}
    if options.rank is not None:
        tensors = order.of_rank(tensors, hints.get(""), options.rank)
    components = draft.components
    if any(change.kind != "dtype" for change in draft.made):  # what the source's indexes count is not in the copy
        components = tuple(replace(one, total_parameters=None) for one in components)
    plan = plan_shards(tensors, options, components, hints)
    is_plain = draft.reconfigured or options.dtype != "keep"
    beside = sorted(file.path for file in content.side_files) if is_plain else []
    unfit = [path for path in beside if path.rpartition("/")[2] in QUANTIZERS_FILES]
    if unfit:
        message = f"Left out: {name_some(unfit, len(unfit))}, because the weights of the copy are not quantized."
        findings += (Finding("info", "left-out", message),)
    written = written_configs(draft.configs, draft.reconfigured, options)
    stated = list(stated_dtypes(draft.configs, plan, written)) if options.dtype_made == "keep" else []
    return replace(
        plan,
        findings=(*findings, *plan.findings, *(finding for *_, finding in stated)),
        unfit=frozenset(unfit) | draft.unfit,
        made=draft.made,
        sources=content.inputs,
        written=written | {path: text for path, text, _ in stated} | dict(draft.written),
    )


def written_configs(configs: Mapping[str, str], reconfigured: Collection[str], options: Options) -> dict[str, bytes]:
    """Return path to content of each config.json that changes: its dtype, weight names or quantization are new."""
    written = {}
    for folder, config in configs.items():
        document = configured(config, torch_name(options.dtype_made))
        if document is None and folder in reconfigured:
            document = json.loads(config)
        if document is not None:
            written[folder + CONFIG_NAME] = json_file(document)
    return written


def plan_shards(
    tensors: Iterable[Tensor],
    options: Options,
    components: Sequence[Component] = (Component(),),
    hints: Mapping[str, ModelHints] = {},
) -> Plan:
    """Return the plan that puts each of `tensors` into exactly one shard of at most `options.max_shard_bytes`.

    - The order `natural` (layer 2 before layer 10) gives the files that `from_pretrained` followed by `save_pretrained`
      writes (transformers 5.23, `core_model_loading.dot_natural_key`). `stored`, as the tensors come, gives those of
      `huggingface_hub.save_torch_state_dict`. `transformers` is as `hints` say, which know the weights that are renamed
      or fused in memory.
    - The strategy `size` is the Hub's own cut. It fills shards in order. A tensor larger than the limit is alone in its
      shard, with a finding. `blocks` does the same with blocks instead of tensors. `pp:N` first cuts into the parts
      that the N ranks of transformers' pipeline load. With `options.rank`, the `tensors` are the part of that rank.

    Each of `components` has the tensors in its folder, and is cut separately. It names its shards, and says whether
    there may be more than one. For a cast, pass the tensors as they are after it.

    >>> from sharding.recipes.stored import Stored
    >>> layers = [Tensor(f"layer.{n}", "U8", (6,), Stored(0, "f", 6 * n, 6 * n + 6)) for n in (0, 10, 2)]
    >>> [[tensor.name for tensor in shard.tensors] for shard in plan_shards(layers, Options(12)).shards]
    [['layer.0', 'layer.2'], ['layer.10']]
    """
    inside = order.by_folder(tensors, [component.folder for component in components])
    shards, findings, stages, counts = list[Shard](), list[Finding](), list[Stage](), list[int]()
    for component in components:
        known, own = hints.get(component.folder), inside[component.folder]
        queue, strangers = order.in_order(own, options.order, component.folder, known)
        made, of_ranks = _cut(queue, options, component, known)
        shards += made
        stages += of_ranks
        findings += [*strangers, *remarks(component, own, len(made))]
        if not (component.is_whole or options.is_single_file):
            findings += _oversized(made, options.max_shard_bytes)
        stated = component.total_parameters if options.rank is None else None
        counts.append(sum(tensor.parameters for tensor in queue) if stated is None else stated)
    pipelines = (known.pipeline for component in components if (known := hints.get(component.folder)))
    return Plan(
        shards=tuple(shards),
        components=tuple(replace(one, total_parameters=n) for one, n in zip(components, counts, strict=True)),
        total_bytes=sum(shard.bytes for shard in shards),
        total_parameters=sum(counts),
        options=options,
        findings=tuple(findings),
        stages=tuple(stages),
        pipeline=next(filter(None, pipelines), None) if options.ranks else None,
    )


def _cut(
    queue: Sequence[Tensor], options: Options, component: Component, hints: ModelHints | None
) -> tuple[list[Shard], list[Stage]]:
    if component.gguf:
        return _shards_of(cut_model(component, queue, options), component, FORMATS["gguf"]), []
    is_whole = component.is_whole or options.is_single_file
    limit_bytes = sum(tensor.bytes for tensor in queue) if is_whole else options.max_shard_bytes
    known = {saved.name: saved.block for saved in hints.saved if saved.block} if hints else {}
    units: Mapping[str, object] = {}
    if options.strategy != "size":
        units = order.whole_blocks(queue, limit_bytes, known)
    elif options.order == "transformers" and hints:
        units = {saved.name: saved.storage for saved in hints.saved}
    if options.ranks and is_whole:
        file = FORMATS["safetensors"].name(component)
        message = f"{file} stays one file, but {options.strategy} cuts a model into several."
        raise UsageError(message, "Leave out the strategy.")
    is_cut = options.ranks and options.rank is None
    parts_of = order.cut_ranks(queue, hints) if is_cut else [[queue]]
    groups = [group for parts in parts_of for part in parts for group in cut(part, limit_bytes, units)]
    shards = _shards_of(groups, component, FORMATS["safetensors"])
    return shards, [*order.stages_of(parts_of, shards, queue, hints, known)] if is_cut and hints else []


def _shards_of(groups: Sequence[Iterable[Tensor]], component: Component, written: FileFormat) -> list[Shard]:
    """Return a named shard for each of `groups`, with its tensors in the order of the file."""
    shards = []
    for number, group in enumerate(groups, start=1):
        suffix = f"-{number:05d}-of-{len(groups):05d}" if len(groups) > 1 else ""
        tensors = tuple(written.order(group))
        shards.append(Shard(written.name(component, suffix), tensors, sum(tensor.bytes for tensor in tensors)))
    return shards


def _oversized(shards: Iterable[Shard], max_shard_bytes: int) -> Iterable[Finding]:
    """Yield a warning for each of `shards` that is larger than the limit, because a tensor is."""
    for shard in (shard for shard in shards if shard.bytes > max_shard_bytes):
        names, size = [tensor.name for tensor in shard.tensors], format_bytes(shard.bytes)
        who, only = f"The tensor {names[0]} ({size}) is", "this tensor"
        if len(names) > 1:
            who = f"The tensors {name_some(names, 1)} ({size}), one piece of memory in transformers, are"
            only = "these tensors"
        message = f"{who} larger than your limit ({format_bytes(max_shard_bytes)}), so {shard.file} holds only {only}."
        hint = f"A tensor is never cut. To keep all files within the limit, choose one above {size}."
        yield Finding("warning", "oversized-tensor", message, hint)


def gathered(plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of a plan for a person: one for all tensors that are larger than the limit."""
    several = [finding for finding in plan.findings if finding.code == "oversized-tensor"]
    if len(several) < 2:
        return plan.findings
    limit = plan.options.max_shard_bytes
    largest = max(shard.bytes for shard in plan.shards)
    message = f"{len(several):,} tensors are larger than your limit ({format_bytes(limit)}), so each gets its own "
    message += f"file. The largest has {format_bytes(largest)}."
    hint = f"A tensor is never cut. For no file above the limit, choose more than {format_bytes(largest)}."
    others = tuple(finding for finding in plan.findings if finding.code != "oversized-tensor")
    return (Finding("warning", "oversized-tensor", message, hint), *others)


def counted(plan: Plan, records: Mapping[str, ShardRecord]) -> Plan:
    """Return `plan` with the tensors that another input changed by the `records`, and what nobody can judge."""
    findings = list(plan.findings)
    if unsure := sorted(name for record in records.values() for name in record.unsure):
        tensors = f"{count(len(unsure), 'computed tensor')} {'has' if len(unsure) == 1 else 'have'}"
        message = f"{tensors} many numbers that depend on the order of summation: {name_some(unsure)}."
        hint = "Another machine may get other numbers there, and `verify` cannot tell whether these are right."
        findings.append(Finding("warning", "cannot-be-judged", message, hint))
    same = plan.of_others & {name for record in records.values() for name in record.unchanged}
    made = []
    for change in plan.made:
        if same and (source := change.by):
            change = replace(change, changed=max(0, change.changed - len(same)))
            if not change.changed:
                change = without_effect(change)
                message = f"The {source.called} {source.text} changes no number. {change.how}"
                findings.append(Finding("warning", "no-change", message, f"Check how the {source.called} was made."))
        made.append(change)
    return replace(plan, made=tuple(made), findings=tuple(findings))


def sentence(tensor: Tensor) -> str:
    """Return the dtype and shape of a tensor, and how it is made.

    >>> from sharding.recipes.cast import Cast
    >>> from sharding.recipes.stored import Stored
    >>> sentence(Tensor("w", "BF16", (3,), Cast(Stored(0, "f", 8, 20), "F32", "BF16")))
    'BF16 [3] = cast(F32 [3], f bytes 8–20)'
    """
    return f"{tensor.dtype} {list(tensor.shape)} = {tensor.recipe.words(tensor.shape)}"


def explained(plan: Plan, pattern: str) -> dict[str, str]:
    """Return tensor name to sentence for the names that match `pattern`. Raises UsageError for none."""
    matches = {tensor.name: sentence(tensor) for tensor in plan.tensors if fnmatchcase(tensor.name, pattern)}
    for number, place in enumerate(plan.sources[1:], start=1):
        matches = {name: text.replace(f" of source {number} ", f" of {place.name} ") for name, text in matches.items()}
    if not matches:
        example = plan.shards[0].tensors[0].name
        raise UsageError(f"No tensor of the plan matches {pattern!r}.", f"A name is, for example, {example}. Try '*'.")
    return matches


def identify_plan(plan: Plan) -> str:
    """Return a digest of `plan` and the state of its sources. Plans with equal digests give the same bytes."""
    # The kinds of fields in records count too, so that a resumed job does not mix two kinds of records.
    sha256 = hashlib.sha256(b"blake3, reads, overflowed\0")
    for source in (source for source in plan.sources if source.gives_numbers):
        sha256.update(f"{source.store} {source.name} {source.revision}\0".encode())
    for change in (change for change in plan.made if change.by):
        sha256.update(f"{change.evidence} unchanged\0".encode())
    for shard in plan.shards:
        component = plan.component(shard)
        metadata = sorted(component.metadata.items())
        if component.gguf:
            sha256.update(next(iter(format_of(plan).pieces(plan, shard))))  # type: ignore[arg-type]
        sha256.update("\0".join([shard.file, *(f"{len(key)} {key}{text}" for key, text in metadata)]).encode())
        # The fields that decide a header, because its JSON takes three times as long.
        fields = [f"{len(name)} {name}{dtype}{shape}" for name, dtype, shape, *_ in shard.tensors]
        sha256.update("".join(fields).encode())
        sha256.update(b"".join([tensor.recipe.key() for tensor in shard.tensors]))
    return sha256.hexdigest()


def cut(queue: Sequence[Tensor], max_shard_bytes: int, units: Mapping[str, object]) -> list[list[Tensor]]:
    """Return `queue` in groups of at most `max_shard_bytes`, as the Hub's splitter cuts it; `units` stay together."""
    by_name = {tensor.name: tensor for tensor in queue}
    sizes: dict[object, int] = {}
    for tensor in queue:
        if tensor.name in units:
            sizes[units[tensor.name]] = sizes.get(units[tensor.name], 0) + tensor.bytes
    from huggingface_hub import split_state_dict_into_shards_factory

    split = split_state_dict_into_shards_factory(
        by_name,
        get_storage_size=lambda tensor: sizes[units[tensor.name]] if tensor.name in units else tensor.bytes,
        get_storage_id=lambda tensor: units.get(tensor.name),
        filename_pattern="{suffix}",
        max_shard_size=max_shard_bytes,
    )
    return [[by_name[name] for name in names] for names in split.filename_to_tensors.values()]
