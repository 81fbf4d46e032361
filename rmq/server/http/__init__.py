"""HTTP of the server: an ASGI application on Starlette, served by uvicorn in a thread."""
