"""What the published Python client does with the stand-in for Corellium, told as JSON."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

import corellium_api


async def told(endpoint: str, token: str) -> dict[str, Any]:
    configuration = corellium_api.Configuration(host=f"{endpoint}/api")
    configuration.access_token = token
    async with corellium_api.ApiClient(configuration) as client:
        api = corellium_api.CorelliumApi(client)
        (project,) = await api.v1_get_projects()
        models = await api.v1_get_models()
        created = await api.v1_create_instance(
            corellium_api.InstanceCreateOptions(
                name="by pypi", project=project.id, flavor="iphone6", os="12.5", patches=[]
            )
        )
        (listed,) = await api.v1_get_project_instances(project.id)
        console = await api.v1_get_instance_console(created.id)
        (snapshot,) = await api.v1_get_instance_snapshots(created.id)
        session = await api.v1_web_player_create_session(
            corellium_api.WebPlayerCreateSessionRequest(
                project_id=project.id,
                instance_id=created.id,
                expires_in=600,
                features=corellium_api.Features(console=True, power_management=True),
            )
        )
        await api.v1_set_instance_state(created.id, corellium_api.V1SetStateBody(state="off"))
        off = await api.v1_get_instance(created.id)
        await api.v1_start_instance(created.id)
        started = await api.v1_get_instance(created.id)
        await api.v1_delete_instance(created.id)
        try:
            await api.v1_get_instance(created.id)
        except corellium_api.ApiException as error:
            missing = [error.status, json.loads(error.body)["errorID"]]
        return {
            "project": [project.name, project.quotas.cores],
            "models": sorted(model.flavor for model in models),
            "listed": [listed.name, listed.flavor, listed.state],
            "console": console.url,
            "snapshot": [snapshot.name, snapshot.fresh],
            "session": session.token,
            "states": [off.state, started.state],
            "missing": missing,
        }


if __name__ == "__main__":
    print(json.dumps(asyncio.run(told(*sys.argv[1:]))))
