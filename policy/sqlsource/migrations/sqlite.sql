-- The tables of package policy, for SQLite 3.35 and later. Run it once. Each statement ends with a blank line.

CREATE TABLE rate_limit_counter (n INTEGER NOT NULL);

INSERT INTO rate_limit_counter VALUES (0);

CREATE TABLE rate_limit_rule (
	name             TEXT NOT NULL,             -- the rule's identity: its budgets belong to it
	plan             TEXT NOT NULL DEFAULT '',  -- '' is the rule itself; else the row holds the limit or the share of that plan only
	description      TEXT NOT NULL DEFAULT '',
	match_route      TEXT NOT NULL DEFAULT '',  -- patterns of net/http's ServeMux, one a line; '' is every request
	match_attributes TEXT NOT NULL DEFAULT '',  -- JSON: {"region": ["eu", "us"]}; '' is every request
	match_more       TEXT NOT NULL DEFAULT '', -- JSON: {"not": {"region": ["eu"], "route": ["/bulk/"]}, "prefix": {...}, "suffix": {...}, "absent": ["user"]}
	allow            BOOLEAN NOT NULL DEFAULT false, -- exempts what it matches from all rules; "limit" is '' then
	key              TEXT NOT NULL DEFAULT '',  -- attributes, with commas: 'user', 'ip', 'route,user'; '' is one budget for all
	"limit"          TEXT NOT NULL DEFAULT '',          -- 'token-bucket 100/s burst 200'
	overrides        TEXT NOT NULL DEFAULT '',  -- JSON: [{"key": ["acme"], "limit": "blocked"}]
	share            INTEGER NOT NULL DEFAULT 0, -- above 0: keys share "limit", and this is the weight of those without another; with a plan, the weight of its keys, and "limit" is ''
	instead          TEXT NOT NULL DEFAULT '', -- rules that it takes the place of, with commas: 'api, service'
	limit_from       TEXT NOT NULL DEFAULT '', -- the attribute that holds a key's limit
	notify           TEXT NOT NULL DEFAULT '', -- shares of the limit to notify of, with commas: '80%, 100%'
	cost             TEXT NOT NULL DEFAULT '',  -- '' is the caller's; else a number or an attribute
	more             TEXT NOT NULL DEFAULT '', -- JSON: further fields as in a file, {"costs": [{"match": {"route": ["/bulk/"]}, "cost": 20}], "actual": "tokens"}
	optional         BOOLEAN NOT NULL DEFAULT false, -- does not apply where a key's attribute is missing
	shadow           BOOLEAN NOT NULL DEFAULT false, -- decides and reports, and denies nothing
	is_active        BOOLEAN NOT NULL DEFAULT true,
	changed_by       TEXT NOT NULL DEFAULT '', -- who changed the row last: for people
	version          INTEGER NOT NULL DEFAULT 0, -- set by a trigger; what readers poll
	created_at       TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
	updated_at       TIMESTAMP NOT NULL DEFAULT CURRENT_TIMESTAMP,
	PRIMARY KEY (name, plan)
);

CREATE TRIGGER rate_limit_rule_insert AFTER INSERT ON rate_limit_rule BEGIN
	UPDATE rate_limit_counter SET n = n + 1;
	UPDATE rate_limit_rule SET version = (SELECT n FROM rate_limit_counter), updated_at = CURRENT_TIMESTAMP
		WHERE name = NEW.name AND plan = NEW.plan;
END;

CREATE TRIGGER rate_limit_rule_update AFTER UPDATE OF name, plan, description, match_route, match_attributes, match_more, allow, key, "limit",
	overrides, share, instead, limit_from, notify, cost, more, optional, shadow, is_active, changed_by ON rate_limit_rule BEGIN
	UPDATE rate_limit_counter SET n = n + 1;
	UPDATE rate_limit_rule SET version = (SELECT n FROM rate_limit_counter), updated_at = CURRENT_TIMESTAMP
		WHERE name = NEW.name AND plan = NEW.plan;
END;

CREATE TABLE rate_limit_setting (
	name  TEXT PRIMARY KEY, -- 'kill_switch' or 'attributes'
	value TEXT NOT NULL     -- 'true' lets every request pass; 'user, plan' are attributes that the program supplies
);

CREATE TABLE rate_limit_violation (
	rule        TEXT NOT NULL,
	key         TEXT NOT NULL,             -- of the budget; a hash if keys are hashed
	minute      TIMESTAMP NOT NULL,        -- in which the denials were
	"user"      TEXT NOT NULL DEFAULT '',  -- the attribute "user" of the last of them
	route       TEXT NOT NULL DEFAULT '',  -- the endpoint
	ip          TEXT NOT NULL DEFAULT '',
	cost        INTEGER NOT NULL,          -- of the last
	remaining   INTEGER NOT NULL,          -- what was left at the last
	retry_after REAL NOT NULL,             -- seconds, at the last
	degraded    BOOLEAN NOT NULL DEFAULT false,
	first_at    TIMESTAMP NOT NULL,
	last_at     TIMESTAMP NOT NULL,
	count       INTEGER NOT NULL,
	PRIMARY KEY (rule, key, minute)
);

CREATE INDEX rate_limit_violation_last ON rate_limit_violation (last_at);      -- who is being limited now

CREATE INDEX rate_limit_violation_key ON rate_limit_violation (key, last_at);  -- what happened to this key

-- A table that was made before it had the column more gets it by this statement:
--   ALTER TABLE rate_limit_rule ADD COLUMN more TEXT NOT NULL DEFAULT '';
-- and then the trigger, so that a change of more is a new version, by this one and the statement of the trigger rate_limit_rule_update above:
--   DROP TRIGGER rate_limit_rule_update;
