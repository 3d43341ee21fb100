"""Show the result in anybody's repo, from the report that lies there and that nobody vouches for."""

import gradio as gr

from sharding.core.errors import ShardingError
from sharding.page.form import Form
from sharding.page.links import Wish, query_of
from sharding.page.panels import problem, result_panel
from sharding.page.planning import Update
from sharding.page.site import Site
from sharding.report.fetch import Result, read_result


class Showing:
    """What happens with a result link."""

    def __init__(self, site: Site, form: Form) -> None:
        """Show in `form`."""
        self._site = site
        self._form = form

    def show(self, wanted: str, request: gr.Request, login: gr.OAuthToken | None) -> Update:
        """Show the result that a link names, or say in one sentence why there is none."""
        if not wanted:
            return {self._form.result: ""}
        try:
            result = read_result(wanted, endpoint=self._site.endpoint, token=self._site.bearer(login))
        except ShardingError as error:
            return {self._form.result: problem(error)}
        return {self._form.result: self._panel(result, wanted, request)}

    def _panel(self, result: Result, wanted: str, request: gr.Request) -> str:
        report, endpoint = result.report, self._site.endpoint
        word = (
            "So says the report in the repo; the shards stored there have the sizes and SHA-256 that it names."
            if result.has_those_files
            else "So says the report in the repo, but the files there are not those it names: do not rely on it."
        )
        source = None
        if report.source.kind == "hub":
            source = f"{endpoint}/{report.source.repo_id}/tree/{report.source.revision}"
        page = f"{endpoint}/{result.repo_id}"
        place = f"{result.repo_id}@{result.revision}" if "@" in wanted else result.repo_id
        link = self._site.address(request) + query_of(Wish(result=place))
        return result_panel(report, result.repo_id, page, link, source, word)
