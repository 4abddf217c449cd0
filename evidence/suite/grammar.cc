// SPDX-License-Identifier: Apache-2.0 OR MIT
// For the compiler: a parser of arithmetic put together from templates, and a table
// with several orders.
#include <boost/multi_index/hashed_index.hpp>
#include <boost/multi_index/member.hpp>
#include <boost/multi_index/ordered_index.hpp>
#include <boost/multi_index_container.hpp>
#include <boost/spirit/include/phoenix.hpp>
#include <boost/spirit/include/qi.hpp>
#include <map>
#include <regex>
#include <string>
#include <vector>

namespace qi = boost::spirit::qi;
namespace mi = boost::multi_index;

template <typename Iterator> struct arithmetic : qi::grammar<Iterator, double(), qi::space_type> {
    qi::rule<Iterator, double(), qi::space_type> sum, product, value;
    arithmetic() : arithmetic::base_type(sum)
    {
        using qi::_1;
        using qi::_val;
        sum = product[_val = _1] >> *(('+' >> product[_val += _1]) | ('-' >> product[_val -= _1]));
        product = value[_val = _1] >> *(('*' >> value[_val *= _1]) | ('/' >> value[_val /= _1]));
        value = qi::double_[_val = _1] | ('(' >> sum[_val = _1] >> ')') | ('-' >> value[_val = -_1]);
    }
};

struct entry {
    std::string name;
    double value;
    int line;
};
using entries = mi::multi_index_container<
    entry, mi::indexed_by<mi::hashed_unique<mi::member<entry, std::string, &entry::name>>,
                          mi::ordered_non_unique<mi::member<entry, double, &entry::value>>,
                          mi::ordered_unique<mi::member<entry, int, &entry::line>>>>;

double evaluate(const std::vector<std::string> &lines)
{
    static const std::regex assignment("([a-z]+) *= *(.*)");
    entries all;
    arithmetic<std::string::const_iterator> grammar;
    int number = 0;
    for (const std::string &line : lines) {
        std::smatch part;
        double value = 0;
        if (!std::regex_match(line, part, assignment))
            continue;
        std::string right = part[2];
        std::string::const_iterator from = right.begin();
        if (qi::phrase_parse(from, right.cend(), grammar, qi::space, value))
            all.insert({part[1], value, number++});
    }
    double sum = 0;
    for (const entry &e : all.get<1>())
        sum += e.value;
    return sum;
}
