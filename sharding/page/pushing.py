"""Handle the events of step 3: propose a free name for the copy, and hand the job to the desk."""

from contextlib import suppress

import gradio as gr

from sharding.core.errors import Refused, ReplaceRefused, ShardingError, UsageError
from sharding.core.limits import ROUNDS
from sharding.desk import JobRequest
from sharding.page.events import Events, Login
from sharding.page.form import HIDDEN, PRIVATE, Shown, Update, Values
from sharding.page.panels import message, problem
from sharding.page.remedies import SIGN_IN
from sharding.page.render import render
from sharding.storage.hub.lookup import propose_name
from sharding.storage.names import new_repo_id

_NEEDS_LOGIN = ("Sign in to push.", "Your choices are kept.", SIGN_IN)


class Pushing(Events):
    """The events of step 3 before a job starts."""

    def propose(self, values: Values, request: gr.Request, login: Login) -> Update:
        """Fill in a namespace and a free name. A name that the visitor wrote stays."""
        form, token, wanted = self.form, self.site.token(request, login), ""
        namespace, name, (proposed, short) = (values[field] for field in (form.namespace, form.name, form.proposed))
        off: Update = {form.start: gr.Button(interactive=False)}
        if not token:
            words, hint, remedy = _NEEDS_LOGIN
            return {**off, form.target: "", form.start_message: message(words, hint, remedy=remedy)}
        try:
            who = self.desk.lookup.who(token)
            space = namespace if namespace in who.namespaces else who.name
            can_start = bool(values[form.shown].plan_id)
            update: Update = {form.start: gr.Button(interactive=can_start), form.start_message: ""}
            update |= {form.namespace: gr.Dropdown(choices=list(who.namespaces), value=space)}
            with suppress(UsageError):  # the plan shows what is wrong
                wanted = propose_name(space, form.source_in(values), form.options_in(values))
            if wanted in ("", proposed) or name not in ("", short):  # proposed already, or the visitor's own
                is_valid = self._is_name(f"{space}/{name.strip()}")
                return {**update, form.start: gr.Button(interactive=can_start and is_valid)}
            free = self.desk.lookup.free_name(wanted, token)
        except ShardingError as error:
            return {**off, form.start_message: problem(error)}
        short, taken = free.partition("/")[2], (f"{wanted} exists already.", f"{free} is free.")
        return {
            **update,
            form.name: short,
            form.proposed: (wanted, short),
            form.name_message: message(*taken, "warning") if free != wanted else "",
        }

    def _is_name(self, text: str) -> bool:
        try:
            return bool(new_repo_id(text, self.site.endpoint))
        except ShardingError:
            return False

    def tell_target(self, values: Values) -> Update:
        """Show where the copy goes, who can see it, and whether a comparison of loads takes more."""
        form, owner, name = self.form, values[self.form.namespace], (values[self.form.name] or "").strip()
        whole = f"{owner}/{name}" if owner and name else ""
        private, loads = values[form.visibility] == PRIVATE, bool(values[form.measure])
        return {form.target: render("target", repo_id=whole, private=private, loads=loads)}

    def check_name(self, namespace: str | None, name: str, shown: Shown, request: gr.Request, login: Login) -> Update:
        """Show a message if the name is taken. Without a name that the Hub accepts, nothing can start."""
        form, token = self.form, self.site.token(request, login)
        wanted = f"{namespace}/{name.strip()}"
        if not (namespace and name.strip() and token):
            words = message("Give the new repo a name.") if namespace and token else ""
            return {form.name_message: words, form.start: gr.Button(interactive=False)}
        fine = {form.name_message: "", form.start: gr.Button(interactive=bool(shown.plan_id))}
        try:
            new_repo_id(wanted, self.site.endpoint)
            free = self.desk.lookup.free_name(wanted, token)
            if free == wanted or self.desk.unfinished(wanted, token):
                return fine
        except ShardingError as error:
            return {form.name_message: problem(error), form.start: gr.Button(interactive=False)}
        text = f"{wanted} exists already. If you go on, a new commit replaces its files."
        return {**fine, form.name_message: message(text, f"{free} is free.", "warning")}

    def start(self, values: Values, request: gr.Request, login: Login) -> Update:
        """Hand the job to the desk and show its progress. If it is refused, show the reason beside the button."""
        form, source = self.form, self.form.source_in(values)
        destination = f"{values[form.namespace] or ''}/{values[form.name].strip()}"
        try:
            wanted = JobRequest(
                source=source,
                destination=destination,
                options=form.options_in(values),
                private=values[form.visibility] == PRIVATE,
                confirmed=values[form.permitted],
                # The permission to replace one copy does not hold for another.
                overwrite=values[form.replace] and values[form.replaced] == (source, destination),
                compare_rounds=ROUNDS if values[form.measure] else 0,
                expect=values[form.shown].plan_id,
            )
            if not wanted.expect:
                raise Refused("There is no plan yet.", "Choose a model and a size first.")
            taken = self.desk.submit(wanted, *self.signed_in(request, login, _NEEDS_LOGIN))
        except ReplaceRefused as error:
            label = f"Replace the copy of {error.there} in {destination} with this copy of {source}"
            return {
                form.start_message: problem(error),
                form.replace: gr.Checkbox(label=label, value=False, visible=True),
                form.replaced: (source, destination),
            }
        except ShardingError as error:
            return {form.start_message: problem(error), form.replace: gr.Checkbox(value=False, visible=False)}
        return {
            **{part: gr.Column(visible=False) for part in (form.choose, form.plan, form.push)},
            form.advanced: gr.Accordion(visible=HIDDEN),
            form.start_message: "",
            **self.taken(taken),
        }
