"""The web console: pages for people, made on the server by every node, behind the API's own roles."""
