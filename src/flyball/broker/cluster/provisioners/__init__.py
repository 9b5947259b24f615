"""How further nodes of a domain come to be: as processes of this machine, by commands, or in ways of others.

A provisioner knows nothing of queues. It starts a node of a given name, and can stop it and see whether it runs.
"""

from flyball.broker.cluster.provisioners.choice import LOCAL, load_provisioners
from flyball.broker.cluster.provisioners.command import CommandTemplate
from flyball.broker.cluster.provisioners.interface import Provisioner, Surroundings
from flyball.broker.cluster.provisioners.local import LocalProcesses

__all__ = ["LOCAL", "CommandTemplate", "LocalProcesses", "Provisioner", "Surroundings", "load_provisioners"]
