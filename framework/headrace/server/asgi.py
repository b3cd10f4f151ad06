"""The ASGI application: limits first, then the data plane by hand, then Litestar for everything else."""

from __future__ import annotations

from headrace.app.app import App
from headrace.server.access import Access
from headrace.server.dataplane import DataPlane
from headrace.server.engine import Engine
from headrace.server.errors import reply_of
from headrace.server.http import Call, Receive, Scope, Send
from headrace.server.limits import Limits
from headrace.server.litestar_app import management
from headrace.server.options import Options
from headrace.server.webhooks import Webhooks


class Server:
    """The HTTP API of an app's database, as an ASGI application: run it by itself, or mount it into another.

    It works while the app runs: `async with app.running()`, around the web server or in the lifespan of the application that it is
    mounted into.

    Args:
        app: the app.
        options: limits, and what push consumers may do.
        access: who may call; by default whoever has a token, and everybody while there is none.
    """

    def __init__(self, app: App, options: Options | None = None, access: Access | None = None) -> None:
        self.app = app
        self.options = options or Options()
        self.engine = Engine(app)
        self.access = access or Access(lambda: app.database)
        self.limits = Limits(self.options)
        self._data = DataPlane(self.engine, self.access, self.limits)
        self._management = management(self.engine, self.access, self._data, self.options)
        self._webhooks = Webhooks(self.engine)
        self._bounded = self.limits.around(self._answer)
        app.attach(self.engine)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._bounded(scope, receive, send)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._management(scope, receive, send)  # type: ignore[arg-type]
            return
        path = scope["path"]
        root = scope.get("root_path", "")
        if root and path.startswith(root):  # mounted: some frameworks leave the whole path there, some don't
            path = path[len(root) :] or "/"
        found = self._data.find(scope["method"], path) or self._webhooks.find(scope["method"], path)
        if found is None:
            await self._management({**scope, "path": path} if root else scope, receive, send)  # type: ignore[arg-type]
            return
        endpoint, names = found
        try:
            body = await self.limits.read_body(scope, receive)
            reply = await endpoint(Call(scope, receive, names, body))
        except Exception as error:
            reply = reply_of(error)
        if reply is not None:
            await reply.send(send)
