"""`rmq audit-trail`: who did what."""

from __future__ import annotations

import json


def test_a_job_that_was_started_and_stopped_is_listed_with_who_did_it(run, client, name):
    client.topic(name).open()
    job = client.admin.job_start(name, by="ann\x1b[31m")
    client.admin.job_stop(job.id, by="bob")

    lines = [
        line
        for line in json.loads(run("audit-trail", "--limit", "1000", "--json").stdout)
        if line["subject"] == job.id
    ]

    assert [line["by"] for line in lines if line["by"] == "bob"] == ["bob"]
    assert lines[-1]["by"].startswith("ann")
    shown = run("audit-trail", "--limit", "1000").stdout
    assert "\x1b[31m" not in shown
    assert job.id in shown


def test_a_limit_that_is_none_is_refused(run):
    refused = run("audit-trail", "--limit", "0")

    assert (refused.exit_code, refused.stdout) == (2, "")
    assert "--limit" in refused.stderr
