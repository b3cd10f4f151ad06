-- Run once by the image of Postgres, as its superuser, when the volume is new. See docs/privileges.md.
\getenv owner_password OWNER_PASSWORD
\getenv server_password SERVER_PASSWORD
create role headrace_owner login password :'owner_password';
create role headrace_server login password :'server_password';
alter database headrace owner to headrace_owner;
