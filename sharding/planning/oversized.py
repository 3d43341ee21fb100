"""Say in one sentence how many tensors are larger than the limit. Pure."""

from sharding.core.text import format_bytes
from sharding.core.values import Finding, Plan


def gathered(plan: Plan) -> tuple[Finding, ...]:
    """Return the findings of a plan for a person: one for all tensors that are larger than the limit."""
    several = [finding for finding in plan.findings if finding.code == "oversized-tensor"]
    if len(several) < 2:
        return plan.findings
    limit = plan.options.max_shard_bytes
    largest = max(shard.bytes for shard in plan.shards)
    message = (
        f"{len(several):,} tensors are larger than your limit ({format_bytes(limit)}), so each gets its own file. "
        f"The largest has {format_bytes(largest)}."
    )
    hint = f"A tensor is never cut. For no file above the limit, choose more than {format_bytes(largest)}."
    others = tuple(finding for finding in plan.findings if finding.code != "oversized-tensor")
    return (Finding("warning", "oversized-tensor", message, hint), *others)
