-- look reads one account for people: field by field, numbers as text, for a
-- script's answer holds them no larger than 2^53 but rounds what has a fraction.
local out = {}
local fields = redis.call('HGETALL', KEYS[1])
for i = 1, #fields, 2 do
  local numbers = { fields[i] }
  for _, v in ipairs(cmsgpack.unpack(fields[i + 1])) do numbers[#numbers + 1] = string.format('%.0f', v) end
  out[#out + 1] = numbers
end
return out
