-- The tables of package policy, for PostgreSQL 12 and later. Run it once. Each statement ends with a blank line.

CREATE SEQUENCE rate_limit_version;

CREATE TABLE rate_limit_rule (
	name             text NOT NULL,                  -- the rule's identity: its budgets belong to it
	plan             text NOT NULL DEFAULT '',       -- '' is the rule itself; else the row holds the limit or the share of that plan only
	description      text NOT NULL DEFAULT '',
	match_route      text NOT NULL DEFAULT '',       -- patterns of net/http's ServeMux, one a line; '' is every request
	match_attributes text NOT NULL DEFAULT '',       -- JSON: {"region": ["eu", "us"]}; '' is every request
	match_more       text NOT NULL DEFAULT '', -- JSON: {"not": {"region": ["eu"], "route": ["/bulk/"]}, "prefix": {...}, "suffix": {...}, "absent": ["user"]}
	allow            boolean NOT NULL DEFAULT false, -- exempts what it matches from all rules; "limit" is '' then
	key              text NOT NULL DEFAULT '',       -- attributes, with commas: 'user', 'ip', 'route,user'; '' is one budget for all
	"limit"          text NOT NULL DEFAULT '',               -- 'token-bucket 100/s burst 200'
	overrides        text NOT NULL DEFAULT '',       -- JSON: [{"key": ["acme"], "limit": "blocked"}]
	share            integer NOT NULL DEFAULT 0, -- above 0: keys share "limit", and this is the weight of those without another; with a plan, the weight of its keys, and "limit" is ''
	instead          text NOT NULL DEFAULT '', -- rules that it takes the place of, with commas: 'api, service'
	limit_from       text NOT NULL DEFAULT '', -- the attribute that holds a key's limit
	notify           text NOT NULL DEFAULT '', -- shares of the limit to notify of, with commas: '80%, 100%'
	cost             text NOT NULL DEFAULT '',       -- '' is the caller's; else a number or an attribute
	more             text NOT NULL DEFAULT '', -- JSON: further fields as in a file, {"costs": [{"match": {"route": ["/bulk/"]}, "cost": 20}], "actual": "tokens"}
	optional         boolean NOT NULL DEFAULT false, -- does not apply where a key's attribute is missing
	shadow           boolean NOT NULL DEFAULT false, -- decides and reports, and denies nothing
	is_active        boolean NOT NULL DEFAULT true,
	changed_by       text NOT NULL DEFAULT '', -- who changed the row last: for people
	version          bigint NOT NULL DEFAULT 0,      -- set by a trigger; what readers poll
	created_at       timestamptz NOT NULL DEFAULT now(),
	updated_at       timestamptz NOT NULL DEFAULT now(),
	PRIMARY KEY (name, plan)
);

CREATE FUNCTION rate_limit_touch() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	NEW.version := nextval('rate_limit_version');
	NEW.updated_at := now();
	RETURN NEW;
END $$;

CREATE TRIGGER rate_limit_rule_touch BEFORE INSERT OR UPDATE ON rate_limit_rule
	FOR EACH ROW EXECUTE FUNCTION rate_limit_touch();

CREATE TABLE rate_limit_setting (
	name  text PRIMARY KEY, -- 'kill_switch' or 'attributes'
	value text NOT NULL     -- 'true' lets every request pass; 'user, plan' are attributes that the program supplies
);

CREATE TABLE rate_limit_violation (
	rule        text NOT NULL,
	key         text NOT NULL,               -- of the budget; a hash if keys are hashed
	minute      timestamptz NOT NULL,        -- in which the denials were
	"user"      text NOT NULL DEFAULT '',    -- the attribute "user" of the last of them
	route       text NOT NULL DEFAULT '',    -- the endpoint
	ip          text NOT NULL DEFAULT '',
	cost        bigint NOT NULL,             -- of the last
	remaining   bigint NOT NULL,             -- what was left at the last
	retry_after double precision NOT NULL,   -- seconds, at the last
	degraded    boolean NOT NULL DEFAULT false,
	first_at    timestamptz NOT NULL,
	last_at     timestamptz NOT NULL,
	count       bigint NOT NULL,
	PRIMARY KEY (rule, key, minute)
);

CREATE INDEX rate_limit_violation_last ON rate_limit_violation (last_at);      -- who is being limited now

CREATE INDEX rate_limit_violation_key ON rate_limit_violation (key, last_at);  -- what happened to this key

-- A table that was made before it had the column more gets it by this statement:
--   ALTER TABLE rate_limit_rule ADD COLUMN more text NOT NULL DEFAULT '';
