"""Admission control in front of a Django application, with views that are coroutines and views in threads."""

from __future__ import annotations

from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from flyball.admission.asgi import AdmissionMiddleware
from flyball.admission.keys import django_key
from tests.admission.frameworks.checks import check
from tests.admission.serving import Database, on_uvloop, serve

sensor = Database()


def item(request: HttpRequest, item_id: int) -> HttpResponse:
    """Look at an item, in a thread."""
    sensor.query()
    return HttpResponse(f"item {item_id}")


async def bid(request: HttpRequest) -> HttpResponse:
    """Return the body."""
    return HttpResponse(request.body)


async def error(request: HttpRequest) -> HttpResponse:
    """Fail."""
    return HttpResponse("sorry", status=500)


urlpatterns = [path("items/<int:item_id>", item), path("items", bid), path("error", error)]


def make_site() -> Any:
    if not settings.configured:
        settings.configure(ROOT_URLCONF=__name__, ALLOWED_HOSTS=["test"], SECRET_KEY="of no use", LOGGING_CONFIG=None)
        django.setup()
    return get_asgi_application()


@on_uvloop
async def test_a_django_application_has_admission_control_after_three_lines() -> None:
    site = make_site()
    app = AdmissionMiddleware(site, sensor=sensor, state_path="/admission")
    await check(app, app, sensor, "GET /items/<int:item_id>")


@on_uvloop
async def test_django_which_knows_no_life_span_runs_where_one_is_required() -> None:
    async with serve(AdmissionMiddleware(make_site(), sensor=sensor), lifespan="on") as port:
        assert port


def test_paths_that_django_does_not_know_share_a_key() -> None:
    make_site()
    key_of = django_key()
    assert key_of({"type": "http", "method": "GET", "path": "/wp-login.php"}) == "GET (no route)"
    assert key_of({"type": "http", "method": "POST", "path": "/items"}) == "POST /items"
