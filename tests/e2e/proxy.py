"""A Unix-socket proxy whose connections can be cut and restored, to lose one rank's line to the controller."""

import contextlib
import pathlib
import socket
import threading


class CuttableProxy:
    """Forwards connections to `address` to `target`. While cut, connections are refused and open ones closed."""

    def __init__(self, address: pathlib.Path, target: pathlib.Path):
        self._address = address
        self._target = target
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._listener: socket.socket | None = None
        self.restore()

    @property
    def address(self) -> str:
        return f"unix:{self._address}"

    def restore(self) -> None:
        listener = socket.socket(socket.AF_UNIX)
        self._address.unlink(missing_ok=True)
        listener.bind(str(self._address))
        listener.listen()
        self._listener = listener
        threading.Thread(target=self._accept, args=(listener,), daemon=True).start()

    def cut(self) -> None:
        self._listener.close()
        self._address.unlink(missing_ok=True)
        # A thread that waits in accept() wakes with a last connection at most; _pump finds it closed.
        with self._lock:
            for connection in self._open:
                with contextlib.suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                near, _ = listener.accept()
            except OSError:
                return
            far = socket.socket(socket.AF_UNIX)
            try:
                far.connect(str(self._target))
            except OSError:
                near.close()
                continue
            with self._lock:
                self._open |= {near, far}
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=self._pump, args=(source, sink), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
