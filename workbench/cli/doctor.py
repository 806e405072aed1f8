"""`workbench doctor`: what this machine can do, what is missing and how to fix it, what is unproven without a Mac."""

from dataclasses import asdict

from cyclopts import App

from workbench.cli.output import print_json, print_table
from workbench.doctor import Finding, Level, examine, unproven
from workbench.paths import home


def register(app: App) -> None:
    """Adds the command."""
    app.command(doctor)


def doctor(*, json: bool = False) -> int:
    """Checks this machine and says how to fix what is missing; exit status 1 when a check fails.

    Example: workbench doctor

    Parameters
    ----------
    json
        One JSON document instead of text.
    """
    findings, claims = examine(), unproven(home() / "tests")
    status = int(any(finding.level is Level.FAIL for finding in findings))
    if json:
        rows = [asdict(finding) for finding in findings]
        print_json("doctor", {"checks": rows, "unproven_without_a_mac": claims, "next": next_step(findings)})
        return status
    print_table([asdict(finding) for finding in findings])
    print("\n**Unproven without a Mac** (tests that only a Mac runs)\n")
    print("\n".join(f"- {claim}" for claim in claims) or "(nothing)")
    print(f"\nNext: {next_step(findings)}")
    return status


def next_step(findings: list[Finding]) -> str:
    """The command to type next: the fix of the first failed check, else a walk through the gates."""
    return next((finding.fix for finding in findings if finding.level is Level.FAIL), "workbench gate all --anyway")
