"""Provisioners start further nodes of a domain: as local processes, with commands, or with a class of the user's.

A provisioner starts a node of a given name, stops it, and checks whether it runs. It does not know queues.
"""

from flyball.broker.cluster.provisioners.choice import LOCAL, load_provisioners
from flyball.broker.cluster.provisioners.command import CommandTemplate
from flyball.broker.cluster.provisioners.interface import Provisioner, Surroundings
from flyball.broker.cluster.provisioners.local import LocalProcesses

__all__ = ["LOCAL", "CommandTemplate", "LocalProcesses", "Provisioner", "Surroundings", "load_provisioners"]
