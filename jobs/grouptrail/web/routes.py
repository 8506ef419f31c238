"""Which path shows what, as HTML and as JSON."""

from __future__ import annotations

from flask import Blueprint, Response, render_template

from grouptrail.web.answers import SORTS, GroupsQuery
from grouptrail.web.group_index import GroupIndex
from grouptrail.web.requests import asked, json_answer

API = "/api/v1/"


def pages(index: GroupIndex) -> Blueprint:
    """Return the pages of groups and topics."""
    routes = Blueprint("pages", __name__)

    @routes.get("/")
    def show_groups() -> str:
        query = asked(GroupsQuery)
        return render_template("groups.html", found=index.groups(query), query=query, sorts=SORTS)

    @routes.get(f"{API}groups")
    def answer_groups() -> Response:
        return json_answer(index.groups(asked(GroupsQuery)))

    return routes
