"""How a stream stores its payloads: versions, upcasters and codecs.

    publish    your data ─▶ JSON ─▶ codec ─▶ JSON string, with headers that name the version and the codec
    a handler  stored JSON ─▶ codec ─▶ upcasters ─▶ JSON of the present version ─▶ decoded into your type

Only streams that were declared with a type, a codec or upcasters have a format. Others pay nothing.
"""
