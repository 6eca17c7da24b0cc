core.register_action("ratelimit", { "http-req" }, function(txn)
  local answer = core.httpclient():get{ url = "http://127.0.0.1:8080/auth/original", timeout = 100, headers = {
    ["x-original-method"] = { txn.sf:method() },
    ["x-original-uri"] = { txn.sf:pathq() },
    ["x-original-host"] = { txn.sf:req_hdr("host") },
    ["x-forwarded-for"] = { txn.sf:src() },
  } }
  local function field(name) return answer.headers and answer.headers[name] and answer.headers[name][0] or "" end
  txn:set_var("txn.answer", answer.status or 0)
  txn:set_var("txn.retry", field("retry-after"))
  txn:set_var("txn.left", field("ratelimit"))
  txn:set_var("txn.policy", field("ratelimit-policy"))
end)
