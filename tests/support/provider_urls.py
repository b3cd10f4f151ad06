"""URLs as consoles of providers show them, with invented names, and what they say."""

from __future__ import annotations

P = "s3cr3t"

PROVIDERS: dict[str, tuple[str, dict[str, str]]] = {
    "neon": (
        f"postgresql://shop_owner:npg_{P}@ep-cool-mud-a1.eu-central-1.neon.example.com/shop?sslmode=require&channel_binding=require",
        {"host": "ep-cool-mud-a1.eu-central-1.neon.example.com", "sslmode": "require", "channel_binding": "require"},
    ),
    "neon pooled": (
        f"postgresql://shop_owner:npg_{P}@ep-cool-mud-a1-pooler.neon.example.com/shop?sslmode=require&channel_binding=require&connect_timeout=15",
        {"host": "ep-cool-mud-a1-pooler.neon.example.com", "connect_timeout": "15"},
    ),
    "neon for clients without SNI": (
        f"postgres://shop_owner:{P}@neon.example.com/shop?options=endpoint%3Dep-cool-mud-a1&sslmode=require",
        {"options": "endpoint=ep-cool-mud-a1"},
    ),
    "supabase direct": (
        f"postgresql://postgres:{P}@db.abcdefgh.supabase.example.com:5432/postgres",
        {"host": "db.abcdefgh.supabase.example.com", "port": "5432"},
    ),
    "supabase session pooler": (
        f"postgresql://postgres.abcdefgh:{P}@aws-0-eu-west-1.pooler.supabase.example.com:5432/postgres",
        {"user": "postgres.abcdefgh"},
    ),
    "supabase transaction pooler": (
        f"postgres://postgres.abcdefgh:{P}@aws-0-eu-west-1.pooler.supabase.example.com:6543/postgres",
        {"user": "postgres.abcdefgh", "port": "6543"},
    ),
    "rds": (f"postgresql://shop:{P}@shop.c1.eu-west-1.rds.example.com:5432/shop", {"dbname": "shop"}),
    "rds with its authority": (
        f"postgresql://shop:{P}@shop.c1.eu-west-1.rds.example.com:5432/shop?sslmode=verify-full&sslrootcert=AUTHORITY",
        {"sslmode": "verify-full"},
    ),
    "aurora": (
        f"postgres://shop:{P}@shop.cluster-c1.eu-west-1.rds.example.com:5432/shop?target_session_attrs=read-write",
        {"target_session_attrs": "read-write"},
    ),
    "aurora with its reader": (
        f"postgresql://shop:{P}@shop.cluster-c1.rds.example.com:5432,shop.cluster-ro-c1.rds.example.com:5432/shop?target_session_attrs=primary",
        {"host": "shop.cluster-c1.rds.example.com,shop.cluster-ro-c1.rds.example.com", "port": "5432,5432"},
    ),
    "rds proxy": (
        f"postgresql://shop:{P}@shop.proxy-c1.rds.example.com:5432/shop?sslmode=require&keepalives=1&keepalives_idle=30&keepalives_interval=5&keepalives_count=3",
        {"keepalives_idle": "30"},
    ),
    "cloud sql socket": (
        f"postgresql://shop:{P}@/shop?host=/cloudsql/project:europe-west1:shop",
        {"host": "/cloudsql/project:europe-west1:shop", "dbname": "shop"},
    ),
    "cloud sql pairs": (
        f"host=/cloudsql/project:europe-west1:shop dbname=shop user=shop password='{P}'",
        {"host": "/cloudsql/project:europe-west1:shop", "password": P},
    ),
    "cloud sql address": (
        f"host=203.0.113.5 port=5432 dbname=shop user=shop password={P} sslmode=verify-ca sslrootcert=AUTHORITY",
        {"host": "203.0.113.5", "sslmode": "verify-ca"},
    ),
    "alloydb": (f"postgresql://postgres:{P}@198.51.100.7:5432/postgres?sslmode=require", {"host": "198.51.100.7"}),
    "azure flexible": (
        f"postgresql://shop:{P}@shop.postgres.database.azure.example.com:5432/shop?sslmode=require",
        {"host": "shop.postgres.database.azure.example.com"},
    ),
    "azure single": (
        f"postgres://shop%40srv:{P}@srv.postgres.database.azure.example.com/postgres?sslmode=require",
        {"user": "shop@srv"},
    ),
    "azure pairs": (
        f"host=shop.postgres.database.azure.example.com port=5432 dbname=shop user=shop password={P} sslmode=require",
        {"host": "shop.postgres.database.azure.example.com"},
    ),
    "heroku": (
        f"postgres://u1abc:p{P}@ec2-3-248-1-1.eu-west-1.compute.example.com:5432/d2def",
        {"user": "u1abc", "dbname": "d2def"},
    ),
    "heroku with ssl=true": (f"postgres://u1abc:p{P}@ec2-3.compute.example.com:5432/d2def?ssl=true", {"sslmode": "require"}),
    "render": (f"postgresql://shop_user:{P}@dpg-abc123-a.frankfurt-postgres.render.example.com/shop_x1", {"dbname": "shop_x1"}),
    "railway": (f"postgresql://postgres:{P}@containers-1.railway.example.com:6112/railway", {"port": "6112"}),
    "fly": (f"postgres://shop:{P}@shop-db.flycast.example.com:5432/shop?sslmode=disable", {"sslmode": "disable"}),
    "fly internal": (
        f"postgres://shop:{P}@top2.nearest.of.shop-db.internal.example.com:5433/shop?sslmode=disable&target_session_attrs=any",
        {"port": "5433"},
    ),
    "digitalocean": (
        f"postgresql://doadmin:AVNS_{P}@db-postgresql-fra1-1.db.ondigitalocean.example.com:25060/defaultdb?sslmode=require",
        {"port": "25060", "sslmode": "require"},
    ),
    "digitalocean pairs": (
        f"username = doadmin\npassword = {P}\nhost = db-fra1-1.db.ondigitalocean.example.com\nport = 25060\ndatabase = defaultdb\nsslmode = require",
        {},
    ),
    "aiven": (
        f"postgres://avnadmin:AVNS_{P}@pg-1-shop.aiven.example.com:12691/defaultdb?sslmode=require",
        {"port": "12691"},
    ),
    "aiven verified": (
        f"postgres://avnadmin:AVNS_{P}@pg-1-shop.aiven.example.com:12691/defaultdb?sslmode=verify-ca&sslrootcert=AUTHORITY",
        {"sslmode": "verify-ca"},
    ),
    "crunchy bridge": (f"postgres://application:{P}@p.abc123.db.postgresbridge.example.com:5432/postgres", {"user": "application"}),
    "timescale": (
        f"postgres://tsdbadmin:{P}@a1b2c3.d4e5.tsdb.cloud.timescale.example.com:33333/tsdb?sslmode=require",
        {"dbname": "tsdb"},
    ),
    "cockroach": (
        f"postgresql://shop:{P}@free-tier.gcp-europe-west1.cockroachlabs.example.com:26257/defaultdb?sslmode=verify-full&options=--cluster%3Dcool-shop-123",
        {"options": "--cluster=cool-shop-123"},
    ),
    "cockroach unescaped": (
        f"postgresql://shop:{P}@free-tier.cockroachlabs.example.com:26257/shop?sslmode=verify-full&sslrootcert=AUTHORITY&options=--cluster=cool-1",
        {"options": "--cluster=cool-1"},
    ),
    "xata": (f"postgresql://ws1:xau_{P}@eu-central-1.sql.xata.example.com:5432/shop:main?sslmode=require", {"dbname": "shop:main"}),
    "nile": (f"postgres://0190a-b:{P}@eu-central-1.db.thenile.example.com:5432/shop", {"user": "0190a-b"}),
    "tembo": (f"postgresql://postgres:{P}@org-shop-inst.data-1.use1.tembo.example.com:5432/postgres", {"dbname": "postgres"}),
    "scaleway": (f"postgres://shop:{P}@192.0.2.15:12345/rdb?sslmode=require", {"host": "192.0.2.15"}),
    "ovh": (
        f"postgres://avnadmin:{P}@postgresql-1-o2.database.cloud.ovh.example.com:20184/defaultdb?sslmode=require",
        {"port": "20184"},
    ),
    "prisma postgres": (
        f"postgres://0af:sk_{P}@db.prisma.example.com:5432/postgres?sslmode=require",
        {"password": f"sk_{P}"},
    ),
    "patroni": (
        f"postgresql://shop:{P}@a.example.com:5432,b.example.com:5432,c.example.com:5433/shop?target_session_attrs=read-write&load_balance_hosts=disable",
        {"host": "a.example.com,b.example.com,c.example.com", "port": "5432,5432,5433"},
    ),
    "kubernetes (cloudnative-pg)": (f"postgresql://app:{P}@cluster-rw.default.svc.example.com:5432/app", {"user": "app"}),
    "docker compose": ("postgres://postgres:postgres@db.example.com/postgres", {"password": "postgres"}),
    "debian's socket": ("postgresql:///shop?host=/var/run/postgresql", {"host": "/var/run/postgresql"}),
    "a socket in the place of the host": ("postgresql://%2Fvar%2Frun%2Fpostgresql/shop", {"host": "/var/run/postgresql"}),
    "a socket with a user": ("postgresql://shop@/shop?host=/tmp&port=5433&gssencmode=disable", {"port": "5433"}),
    "ipv6": (f"postgresql://shop:{P}@[2001:db8::1]:5433/shop", {"host": "2001:db8::1", "port": "5433"}),
    "ipv6 among others": (f"postgresql://shop:{P}@a.example.com:5432,[2001:db8::1]/shop", {"host": "a.example.com,2001:db8::1"}),
    "a password with all signs": (
        "postgresql://shop:p%40s%2Fs%3Aw%3F%23%25%26%3D%2B%20d@db.example.com/shop",
        {"password": "p@s/s:w?#%&=+ d"},
    ),
    "a password with signs that need no escape": ("postgresql://shop:p#a?s+s=w!o$r&d*@db.example.com/shop", {"password": "p#a?s+s=w!o$r&d*"}),
    "a password with plus among the parameters": ("postgresql://db.example.com/shop?user=shop&password=a+b%2Bc", {"password": "a+b+c"}),
    "tunings of a driver": (
        "postgres://shop@db.example.com/shop?connect_timeout=10&application_name=shop&fallback_application_name=x&client_encoding=utf8"
        "&tcp_user_timeout=10000&gssencmode=prefer&sslcompression=0&sslsni=1&krbsrvname=postgres&sslnegotiation=postgres",
        {"application_name": "shop"},
    ),
}  # fmt: skip
"""By the provider, or the thing that is special: the URL, and parameters that it says among others. AUTHORITY stands for
the path of a file."""

REFUSED = {"digitalocean pairs": "has the parameter 'username'"}
"""Those that psql does not read either."""
