"""The lock under which what variables hold changes hands.

Between claiming the buffers that a step donates and putting back what comes out, another thread
must neither claim nor see them; and steps with collectives have to reach all devices in one order.
"""

from __future__ import annotations

import threading

handover = threading.RLock()
