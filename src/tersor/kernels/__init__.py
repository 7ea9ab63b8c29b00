"""One folder per operation: ``reference`` defines the answer, ``cpu`` and ``gpu`` give its bits."""
