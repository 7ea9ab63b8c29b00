from __future__ import annotations

from tersor.bench.peers import PEERS, load_peer
from tersor.errors import BackendUnavailableError

# blosc2 sets an environment variable when it is imported; here it is no test's leak
for name in PEERS:
    try:
        load_peer(name)
    except BackendUnavailableError:
        continue
