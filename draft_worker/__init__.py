"""The draft service. Its torch threads do not hold cores that they have no work for."""

from tandem.process import spin_briefly

spin_briefly()
