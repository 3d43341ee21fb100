from tests.hubs import new_hub

hub = new_hub
