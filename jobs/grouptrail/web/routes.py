"""Which path shows what, as HTML and as JSON."""

from __future__ import annotations

from flask import Blueprint, Response, render_template
from markupsafe import Markup

from grouptrail.report.layout import arrange
from grouptrail.report.page import embedded
from grouptrail.web.answers import GroupQuery, GroupsQuery
from grouptrail.web.group_index import GroupIndex
from grouptrail.web.group_page import GroupPage, group_page
from grouptrail.web.requests import asked, json_answer

API = "/api/v1/"


def pages(index: GroupIndex) -> Blueprint:
    """Return the pages of groups and topics."""
    routes = Blueprint("pages", __name__)

    def group_found(group_id: str) -> tuple[GroupPage, GroupQuery]:
        query = asked(GroupQuery)
        return group_page(index, group_id if query.name is None else query.name, query), query

    @routes.get("/")
    def show_groups() -> str:
        query = asked(GroupsQuery)
        return render_template("groups.html", found=index.groups(query), query=query)

    @routes.get("/groups/", defaults={"group_id": ""})
    @routes.get("/groups/<name:group_id>")
    def show_group(group_id: str) -> str:
        page, query = group_found(group_id)
        data = None if page.timeline is None else Markup(embedded(arrange(page.timeline)))
        return render_template(
            "group.html",
            found=page.answer,
            query=query,
            clusters=index.clusters_of(page.answer.group_id),
            timeline=data,
            no_timeline=page.no_timeline,
        )

    @routes.get(f"{API}groups")
    def answer_groups() -> Response:
        return json_answer(index.groups(asked(GroupsQuery)))

    @routes.get(f"{API}groups/", defaults={"group_id": ""})
    @routes.get(f"{API}groups/<name:group_id>")
    def answer_group(group_id: str) -> Response:
        page, _ = group_found(group_id)
        return json_answer(page.answer)

    return routes
