"""What to tell a person about a program that has ended.

Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from pdcluster_cli.errors import CliError, StartError, StartTimeoutError
from pdcluster_cli.up.planning import KillReason
from pdcluster_cli.up.remedies import remedy_for
from pdcluster_cli.up.snapshot import Member

__all__ = ["restart_message", "start_error"]


def start_error(
    member: Member, reason: KillReason | None, *, last_lines: Sequence[str], log: str
) -> CliError:
    """Return the error of a program that ended before it was ever ready.

    Args:
        member: The program, ended.
        reason: Why it was killed, where it was.
        last_lines: The end of its log.
        log: Path of its whole log.
    """
    shown = "\n".join(f"    {line}" for line in last_lines) or "    (it wrote nothing)"
    remedy = remedy_for(last_lines) or "Correct what it says and try again."
    rest = f"Its last words:\n{shown}\n{remedy} Its whole log: {log}"
    if reason is KillReason.OVERDUE:
        budget = member.program.probes.startup.budget_s
        return StartTimeoutError(
            f"{member.name} was not ready within its start-up budget of {budget} s. {rest}"
        )
    return StartError(f"{member.name} cannot start: it ended with code {member.exit_code}. {rest}")


def restart_message(member: Member, reason: KillReason | None) -> str:
    """Return what to say of a program that has served before and is started again."""
    why = {
        KillReason.SILENT: "stopped answering and was killed",
        KillReason.OVERDUE: "did not become ready again in time and was killed",
    }
    told = why.get(reason) if reason is not None else None
    return f"{member.name} {told or f'ended with code {member.exit_code}'}; it is started again"
