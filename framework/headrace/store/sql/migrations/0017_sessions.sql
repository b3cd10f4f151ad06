-- Sessions of the console, see store/catalog/sessions.py.
--
-- Locks: headrace_internal.tokens (share row exclusive)

-- A browser has the secret in a cookie. Here is its SHA-256 only. A session ends with its token.
create table headrace_internal.sessions (
    digest      bytea primary key,
    token_id    text not null references headrace_internal.tokens (id) on delete cascade,
    mount       text not null,          -- the path of the server at which it is valid
    created_at  timestamptz not null,
    expires_at  timestamptz not null
);

create index sessions_of_token on headrace_internal.sessions (token_id, created_at);
