"""The web service: takes orders over HTTP, and ships them in the same process.

    uvicorn my_service.web:web

A purchase and its message are committed together. So no order is taken without being shipped, and none is shipped that was
not taken. For handlers in processes of their own, replace `app.running()` by `app`, and run `headrace run` beside it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import Depends, FastAPI, HTTPException, Request, Response
from pydantic import BaseModel, Field
from sqlalchemy import JSON, BigInteger, text
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from .service import Order, app, settings


class Base(DeclarativeBase):
    """The service's tables."""


class Purchase(Base):
    """An order as it was taken."""

    __tablename__ = "purchases"

    id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    customer: Mapped[str]
    items: Mapped[list[str]] = mapped_column(JSON)


class NewOrder(BaseModel):
    """The body of a request."""

    customer: str
    items: Annotated[list[str], Field(min_length=1)]


class Taken(BaseModel):
    """An order that was taken, and its tracking number once it is on its way."""

    id: int
    tracking: str | None = None


@asynccontextmanager
async def database(web: FastAPI) -> AsyncIterator[None]:
    """Give the routes sessions on the app's database. The app must be connected."""
    engine = create_async_engine(app.sqlalchemy_url())
    try:
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        web.state.sessions = async_sessionmaker(engine, expire_on_commit=False)
        yield
    finally:
        await engine.dispose()


@asynccontextmanager
async def lifespan(web: FastAPI) -> AsyncIterator[None]:
    """Run the handlers beside the routes."""
    async with app.running(), database(web):
        yield


web = FastAPI(title="my-service", lifespan=lifespan)


async def request_session(request: Request) -> AsyncIterator[AsyncSession]:
    """The session of a request. A route commits it, before it responds."""
    async with request.app.state.sessions() as session:
        yield session


Session = Annotated[AsyncSession, Depends(request_session)]


@web.post("/orders", status_code=202)
async def take(order: NewOrder, session: Session) -> Taken:
    """Take an order: save it, and publish it for shipping, in one transaction."""
    purchase = Purchase(customer=order.customer, items=order.items)
    session.add(purchase)
    await session.flush()  # so that it has its id
    await app.publish("orders", f"orders.{settings.region}.{purchase.id}", Order(purchase.id, order.items), tx=session)
    await session.commit()
    return Taken(id=purchase.id)


@web.get("/orders/{order_id}")
async def look(order_id: int, session: Session) -> Taken:
    """Look an order up."""
    if await session.get(Purchase, order_id) is None:
        raise HTTPException(404, f"There is no order {order_id}.")
    tracking = await session.scalar(text("select tracking from deliveries where order_id = :id"), {"id": order_id})
    return Taken(id=order_id, tracking=tracking)


@web.get("/ready")
async def ready(response: Response) -> dict[str, object]:
    """Whether the service works, for the probes of a load balancer."""
    found = app.readiness()
    response.status_code = 200 if found else 503
    return {"ready": found.ready, "reasons": found.reasons}
