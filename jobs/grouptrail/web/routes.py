"""Which path shows what, as HTML and as JSON."""

from __future__ import annotations

from http import HTTPStatus

from flask import Blueprint, Response, jsonify, redirect, render_template, request
from markupsafe import Markup
from werkzeug.wrappers import Response as AnyResponse

from grouptrail.query.member_names import distinct_names
from grouptrail.query.show_what_if import trouble_texts
from grouptrail.report.layout import arrange, arranged_rollouts
from grouptrail.report.page import embedded
from grouptrail.snapshot.state import STATES
from grouptrail.web.answers import (
    BrokersQuery,
    ChangesQuery,
    Group,
    GroupQuery,
    GroupsQuery,
    RebalancesQuery,
    Rollouts,
    RolloutsQuery,
    Stop,
    Topic,
    TopicQuery,
    TopicsQuery,
)
from grouptrail.web.broker_page import broker_page
from grouptrail.web.changes_page import changes_page
from grouptrail.web.group_index import GroupIndex
from grouptrail.web.group_page import GroupPage, group_page
from grouptrail.web.openapi import API, description
from grouptrail.web.rebalances_page import rebalances_page
from grouptrail.web.requests import PageError, asked, json_answer
from grouptrail.web.reset_commands import reset_commands
from grouptrail.web.rollouts_page import rollouts_page
from grouptrail.web.runbooks import runbooks
from grouptrail.web.texts import page_of
from grouptrail.web.topic_page import topic_page
from grouptrail.web.topics_page import topics_page


def list_pages(index: GroupIndex) -> Blueprint:
    """Return the pages of all groups, of all topics and of the rebalances of all groups."""
    routes = Blueprint("lists", __name__)

    @routes.get("/")
    def show_groups() -> str:
        query = asked(GroupsQuery)
        return render_template("groups.html", answer=index.groups(query), query=query, states=STATES)

    @routes.get("/groups")
    def redirect_to_groups() -> AnyResponse:
        return _redirect("/")

    @routes.get("/topics")
    def show_topics() -> str:
        query = asked(TopicsQuery)
        return render_template("topics.html", answer=topics_page(index, query), query=query)

    @routes.get("/rebalances")
    def show_rebalances() -> str:
        query = asked(RebalancesQuery)
        answer = rebalances_page(index, query)
        return render_template("rebalances.html", answer=answer, query=query, given=request.args)

    @routes.get(f"{API}groups")
    def answer_groups() -> Response:
        return json_answer(index.groups(asked(GroupsQuery)))

    @routes.get(f"{API}topics")
    def answer_topics() -> Response:
        return json_answer(topics_page(index, asked(TopicsQuery)))

    @routes.get(f"{API}rebalances")
    def answer_rebalances() -> Response:
        return json_answer(rebalances_page(index, asked(RebalancesQuery)))

    return routes


def pages(index: GroupIndex) -> Blueprint:
    """Return the pages of a group and of a topic."""
    routes = Blueprint("pages", __name__)

    def requested_group(group_id: str) -> tuple[GroupPage, GroupQuery]:
        query = asked(GroupQuery)
        return group_page(index, group_id if query.name is None else query.name, query), query

    def requested_topic(topic: str) -> tuple[Topic, TopicQuery]:
        query = asked(TopicQuery)
        return topic_page(index, topic if query.name is None else query.name, query), query

    @routes.get("/groups/", defaults={"group_id": ""})
    @routes.get("/groups/<name:group_id>")
    def show_group(group_id: str) -> str | AnyResponse:
        if not group_id and "name" not in request.args:
            return _redirect("/")
        page, query = requested_group(group_id)
        data = None if page.timeline is None else Markup(embedded(arrange(page.timeline)))
        answer = page.answer
        kind = None if answer.now is None else answer.now.group_kind
        return render_template(
            "group.html",
            answer=answer,
            query=query,
            clusters=index.clusters_of("group_id", answer.group_id),
            timeline=data,
            no_timeline=page.no_timeline,
            names=_names(answer),
            anchors=page.anchors,
            resets=reset_commands(answer.group_id, kind, answer.cluster, answer.at, answer.until),
        )

    @routes.get("/topics/", defaults={"topic": ""})
    @routes.get("/topics/<name:topic>")
    def show_topic(topic: str) -> str | AnyResponse:
        if not topic and "name" not in request.args:
            return _redirect("/topics")
        answer, query = requested_topic(topic)
        clusters = index.clusters_of("topic", answer.topic)
        return render_template("topic.html", answer=answer, query=query, clusters=clusters)

    @routes.get(f"{API}groups/", defaults={"group_id": ""})
    @routes.get(f"{API}groups/<name:group_id>")
    def answer_group(group_id: str) -> Response:
        page, _ = requested_group(group_id)
        return json_answer(page.answer)

    @routes.get(f"{API}topics/", defaults={"topic": ""})
    @routes.get(f"{API}topics/<name:topic>")
    def answer_topic(topic: str) -> Response:
        answer, _ = requested_topic(topic)
        return json_answer(answer)

    @routes.get(f"{API}openapi.json")
    def answer_description() -> Response:
        return jsonify(description())

    return routes


def _redirect(path: str) -> AnyResponse:
    """Return a redirection to a list, with the parameters of the request."""
    query = request.query_string.decode("ascii", "ignore")
    return redirect(f"{path}?{query}" if query else path)


def change_pages(index: GroupIndex) -> Blueprint:
    """Return the pages of what has changed, and of what to do about it."""
    routes = Blueprint("change_pages", __name__)

    @routes.get("/changes")
    def show_changes() -> str:
        answer = changes_page(index, asked(ChangesQuery))
        return render_template("changes.html", answer=answer, given=request.args)

    @routes.get(f"{API}changes")
    def answer_changes() -> Response:
        return json_answer(changes_page(index, asked(ChangesQuery)))

    @routes.get("/runbooks")
    def show_runbooks() -> str:
        return render_template("runbooks.html", runbooks=runbooks())

    return routes


def rollout_pages(index: GroupIndex) -> Blueprint:
    """Return the pages of a group's rollouts."""
    routes = Blueprint("rollout_pages", __name__)

    def requested_rollouts(group_id: str) -> Rollouts:
        query = asked(RolloutsQuery)
        return rollouts_page(index, group_id if query.name is None else query.name, query)

    @routes.get("/rollouts/", defaults={"group_id": ""})
    @routes.get("/rollouts/<name:group_id>")
    def show_rollouts(group_id: str) -> str:
        answer = requested_rollouts(group_id)
        return render_template(
            "rollouts.html",
            answer=answer,
            clusters=index.clusters_of("group_id", answer.group_id),
            drawn=Markup(embedded(arranged_rollouts([row.model_dump() for row in answer.rollouts]))),
        )

    @routes.get(f"{API}rollouts/", defaults={"group_id": ""})
    @routes.get(f"{API}rollouts/<name:group_id>")
    def answer_rollouts(group_id: str) -> Response:
        return json_answer(requested_rollouts(group_id))

    return routes


def broker_pages(index: GroupIndex) -> Blueprint:
    """Return the pages of what would happen if brokers stopped."""
    routes = Blueprint("broker_pages", __name__)

    def requested_brokers(ids: str) -> tuple[Stop, BrokersQuery]:
        query = asked(BrokersQuery)
        return broker_page(index, ids if query.name is None else query.name, query), query

    @routes.get("/brokers/", defaults={"ids": ""})
    @routes.get("/brokers/<name:ids>")
    def show_brokers(ids: str) -> str | AnyResponse:
        try:
            answer, query = requested_brokers(ids)
        except PageError as error:
            if ids or request.args.keys() - {"cluster"} or not error.near:
                raise
            first = page_of("brokers", error.near[0], cluster=request.args.get("cluster"))
            return redirect(first, HTTPStatus.SEE_OTHER)
        return render_template(
            "broker.html", answer=answer, query=query, clusters=index.clusters, trouble_texts=trouble_texts
        )

    @routes.get(f"{API}brokers/", defaults={"broker_ids": ""})
    @routes.get(f"{API}brokers/<name:broker_ids>")
    def answer_brokers(broker_ids: str) -> Response:
        answer, _ = requested_brokers(broker_ids)
        return json_answer(answer)

    return routes


def _names(group: Group) -> dict[str, str]:
    """Return a name for each member on the group's page."""
    owners = [
        {"member_id": row.owner_member_id, "client_id": row.owner_client_id}
        for row in group.resets
        if row.owner_member_id is not None
    ]
    members = group.now.members if group.now is not None else ()
    return distinct_names([*owners, *(member.model_dump() for member in members)])
