-- feed keeps a table of records, and the order of their changes. KEYS: a hash of the records ("version ends value"), with
-- under "" "life server place top"; a sorted set of its keys by their place in the feed; and one of keys whose records were
-- removed or end, by the time from which they are dropped. Times in us. ARGV: a command, the caller's life, an id for a new
-- life, the time for which removals stay, and: since AFTER N | merge (KEY VERSION ENDS VALUE)... | set KEY EXPECTED ENDS VALUE.
local records, feed, over = KEYS[1], KEYS[2], KEYS[3]
local clock = redis.call('TIME')
local now = clock[1] * 1000000 + clock[2]
local function int(n) return string.format('%.0f', n) end
local function hex(s) return (string.gsub(s, '.', function(c) return string.format('%02x', string.byte(c)) end)) end -- in any locale
local function info(section) local text = redis.pcall('INFO', section) return type(text) == 'string' and text or '' end -- an ACL may forbid it
local replication = info('replication')
if string.find(replication, 'role:slave') then return redis.error_reply('READONLY the server is a replica') end
-- Another run, or another replication of a server that was a replica itself, may have other data.
local server = (string.match(info('server'), 'run_id:(%x+)') or '-')
  .. (string.find(replication, 'master_replid2:%x*[^0%s]') and string.match(replication, 'master_replid:(%x+)') or '')
local life, at, place, top = string.match(redis.call('HGET', records, '') or '', '^(%x+) (%S+) (%d+) (%d+)$')
if not life or redis.call('ZCARD', feed) + 1 ~= redis.call('HLEN', records) then -- lost, as a whole or in part
  redis.call('DEL', records, feed, over)
  at, place, top = nil, 0, 0
end
local function keep() redis.call('HSET', records, '', table.concat({ life, server, int(place), int(top) }, ' ')) end
if at ~= server then life = ARGV[3] keep() end
local function get(key)
  local v, e, x = string.match(redis.call('HGET', records, key) or '', '^(%d+) (%d+) (.*)$')
  return tonumber(v or 0), tonumber(e or 0), x or ''
end
local function put(key, version, ends, value)
  local v, e, x = get(key)
  if version > v or version == v and (ends > e or ends == e and hex(value) > hex(x)) then
    place, top = place + 1, math.max(top, version)
    redis.call('HSET', records, key, int(version) .. ' ' .. int(ends) .. ' ' .. value)
    redis.call('ZADD', feed, int(place), key)
    redis.call('ZREM', over, key)
  elseif version ~= v or ends ~= e or value ~= x then return end
  if value == '' or ends > 0 then redis.call('ZADD', over, int(math.max(now, ends) + ARGV[4]), key) end
end
if ARGV[1] == 'since' then
  local from = ARGV[2] == life and ARGV[5] or '0'
  local keys = redis.call('ZRANGEBYSCORE', feed, '(' .. from, '+inf', 'LIMIT', 0, ARGV[6])
  local last = keys[1] and redis.call('ZSCORE', feed, keys[#keys]) or from
  return { life, int(now), last, keys, keys[1] and redis.call('HMGET', records, unpack(keys)) or {} }
end
if ARGV[2] ~= life then return { life } end
for _, key in ipairs(redis.call('ZRANGEBYSCORE', over, '-inf', int(now), 'LIMIT', 0, 1000)) do
  redis.call('HDEL', records, key) redis.call('ZREM', feed, key) redis.call('ZREM', over, key)
end
local changed = ''
if ARGV[1] == 'merge' then
  for i = 5, #ARGV, 4 do put(ARGV[i], tonumber(ARGV[i + 1]), tonumber(ARGV[i + 2]), ARGV[i + 3]) end
else
  local v, e, x = get(ARGV[5])
  local is = x ~= '' and (e == 0 or now < e) and int(v) or '0'
  if ARGV[6] == '-1' or ARGV[6] == is then put(ARGV[5], math.max(now, top + 1), tonumber(ARGV[7]), ARGV[8])
  else changed = 'changed' end
end
keep()
return { life, changed, redis.call('HGET', records, ARGV[5]) }
