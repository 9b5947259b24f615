"""The papers whose measurements `flyball lab reproduce` repeats: their names and publications."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Paper:
    """A paper whose experiments are in the folder `name`; `former_name` is accepted as well."""

    name: str
    former_name: str
    citation: str


PAPERS = (
    Paper(
        "selfware",
        "seed-000",
        "S. Bouchenak, F. Boyer, F. Métral, A. Freyssinet, J. Philippe, S. Sicard, C. Taton: Selfware:"
        " Self-management of JMS-based applications. Deliverable SP4, lot 2, INRIA and ScalAgent, 26 June 2008.",
    ),
    Paper(
        "admission",
        "seed-001",
        "W. Xu, Z. Tan, A. Fox, D. Patterson: Regulating workload in J2EE application servers."
        " University of California, Berkeley.",
    ),
    Paper(
        "thorbangmq",
        "seed-002",
        "E. Jonsson, M. Bang: Advanced Systems Lab (ThorBangMQ). ETH Zürich, 15 November 2013.",
    ),
    Paper(
        "telesto",
        "seed-003",
        "D. Langenegger, S. Marti: Telesto: A distributed message passing system."
        " Advanced Systems Lab, ETH Zürich, 15 November 2013.",
    ),
    Paper(
        "prefetch",
        "seed-004",
        "N. S. Rosa, D. J. M. Cavalcanti: Using controllers to adapt messaging systems: an initial experience."
        " Centro de Informática, Universidade Federal de Pernambuco, Recife.",
    ),
)


def current_name(name: str) -> str:
    """Return the current name of a paper, or of its experiment, from the current or a former one."""
    folder, slash, rest = name.partition("/")
    return next((paper.name for paper in PAPERS if paper.former_name == folder), folder) + slash + rest
