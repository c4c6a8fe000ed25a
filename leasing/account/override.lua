-- override sets a record of override.go. KEYS: the record, and accounts whose holders are asked to claim. ARGV: the
-- version that it has now (0: none, -1: any, -2: one that was lost is told again), requests, expiry, when it was set,
-- texts, for how long it is kept in ms, the time (0 but in tests). Answers whether it is so, the record, and the time.
local match, requests, ends, set, kept, now = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]),
  tonumber(ARGV[4]), tonumber(ARGV[6]), tonumber(ARGV[7])
if now == 0 then
  local clock = redis.call('TIME')
  now = clock[1] * 1000000 + clock[2]
end
local was = redis.call('GET', KEYS[1]) or ''
local version, n, over, last = 1, -2, 0, 0
if was ~= '' then version, n, over, last = struct.unpack('<Bddd', was) end
if version ~= 1 then error('no override in ' .. KEYS[1]) end
if match == -2 then
  if set <= last then return { '1', was, string.format('%.0f', now) } end
elseif match >= 0 and match ~= ((n == -2 or over > 0 and now >= over) and 0 or last) then
  return { '0', was, string.format('%.0f', now) }
else
  set = math.max(now, last + 1)
end
local record = struct.pack('<Bddd', 1, requests, ends, set) .. ARGV[5]
redis.call('SET', KEYS[1], record)
if requests == -2 then ends = set end
if ends > 0 then redis.call('PEXPIREAT', KEYS[1], string.format('%.0f', math.floor(ends / 1000) + kept)) end
for i = 2, #KEYS do
  for _, field in ipairs(redis.call('HKEYS', KEYS[i])) do
    if string.sub(field, 1, 2) == 'h:' then
      redis.call('PUBLISH', 'sluice:recalled:' .. string.sub(field, 3, 11), KEYS[i])
    end
  end
end
return { '1', record, string.format('%.0f', now) }
