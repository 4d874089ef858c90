"""Which classes, functions and friends in C++ are refused, and what is counted."""

import unittest

from tools import sizes


def private_methods(declarations):
    """How many private methods a class with these private declarations is seen to have."""
    scopes = []

    class Reader(sizes._Reader):  # pylint: disable=protected-access

        def _close(self):
            if self.scopes:
                scopes.append(self.scopes[-1])
            super()._close()

    reader = Reader("a.h")
    text = f"namespace n {{\nclass A {{\n{declarations}\n}};\n}}\n"
    for token in sizes.tokens(text):
        reader.read(token)
    return next(scope.num_private_methods for scope in scopes if (scope.kind, scope.names) == ("type", ["A"]))


def class_with(num_private_methods, name="A"):
    methods = "".join(f"  void F{i}(int a);\n" for i in range(num_private_methods))
    return f"namespace n {{\nclass {name} {{\n public:\n  void G();\n private:\n{methods}}};\n}}\n"


def function_of(num_lines, head="int A::F(int a) const"):
    return head + " {\n" + "  a += 1;\n" * (num_lines - 2) + "}\n"


def found_in(text):
    return [(found.line, found.key) for found in sizes.violations("a.cc", text)]


class PrivateMethodsTest(unittest.TestCase):

    def test_a_class_may_have_as_many_as_the_limit(self):
        self.assertEqual(found_in(class_with(sizes.MAX_PRIVATE_METHODS)), [])

    def test_one_more_is_refused_by_name_and_number(self):
        violation, = sizes.violations("a.h", class_with(sizes.MAX_PRIVATE_METHODS + 1))
        self.assertEqual((violation.path, violation.line, violation.key), ("a.h", 2, "n::A"))
        self.assertIn("n::A has 26 private methods", violation.problem)

    def test_declarations_definitions_constructors_and_operators_count(self):
        for text in ("void F();", "void F() const { G(); }", "static void F();", "explicit A(int a);", "~A();",
                     "A(int a) : a_(a), b_{a} {}", "bool operator==(const A& a) const;", "void operator()(int a);",
                     "explicit operator bool() const;", "template <typename T>\n  T F(const T& t);",
                     "std::map<int, std::function<void()>> F();", "[[nodiscard]] int F();", "virtual void F() = 0;",
                     "ABSL_MUST_USE_RESULT int F();", "void F(B b = {}, int a = G(1));", "auto F() -> int;",
                     "void F() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);", "explicit(true) A(int a);"):
            with self.subTest(text=text):
                self.assertEqual(private_methods(text), 1)

    def test_fields_types_and_what_the_compiler_makes_do_not_count(self):
        for text in ("int a_ = 0;", "int a_ ABSL_GUARDED_BY(mu_) = 0;", "alignas(64) int a_;",
                     "std::function<void(int)> f_;", "static constexpr auto kA = absl::Seconds(1);", "int a_{F(1)};",
                     "int (*f_)(int);", "using F = void (*)(int);", "enum class E { kOne = F(1), kTwo };",
                     "struct B;", "friend bool operator==(const A& a, const A& b) { return true; }",
                     "A(const A&) = delete;", "A& operator=(A&&) = default;", "static_assert(sizeof(int) == 4);",
                     "int a_[F(2)];"):
            with self.subTest(text=text):
                self.assertEqual(private_methods(text), 0)

    def test_only_private_sections_count(self):
        self.assertEqual(private_methods("void F();\n public:\n void G();\n protected:\n void H();"), 1)
        self.assertEqual(private_methods("public:\n void G();\n private:\n void F();\n void H();"), 2)
        self.assertEqual(found_in(class_with(30).replace("class A", "struct A").replace(" private:\n", "")), [])

    def test_methods_of_a_nested_class_are_its_own(self):
        self.assertEqual(private_methods("struct B {\n  void F();\n  void G() {}\n};\nvoid F();"), 1)
        self.assertEqual(found_in("class Outer {\n" + class_with(26).split("\n", 1)[1]), [(2, "Outer::A")])

    def test_what_is_in_a_body_a_comment_or_a_string_does_not_count(self):
        self.assertEqual(private_methods("void F() {\n  int a(1);\n  auto l = [] { G(); };\n}"), 1)
        self.assertEqual(private_methods("// void F();\n/* void G(); */\nstd::string s = \"void F();\";"), 0)


class FunctionLinesTest(unittest.TestCase):

    def test_a_function_may_have_as_many_as_the_limit(self):
        self.assertEqual(found_in(function_of(sizes.MAX_FUNCTION_LINES)), [])

    def test_one_more_is_refused_at_its_first_line(self):
        text = "namespace n {\n\n" + function_of(sizes.MAX_FUNCTION_LINES + 1) + "}\n"
        self.assertEqual(found_in(text), [(3, "a.cc: A::F")])
        self.assertIn("A::F has 71 lines", sizes.violations("a.cc", text)[0].problem)

    def test_the_head_is_a_part_of_the_function(self):
        self.assertEqual(found_in(function_of(sizes.MAX_FUNCTION_LINES, "int F(int a,\n      int b)")),
                         [(1, "a.cc: F")])

    def test_functions_of_all_kinds_are_seen(self):
        for head, name in (("static int F()", "F"), ("A::A(int a) : a_{a}, b_(1)", "A::A"), ("A::~A()", "A::~A"),
                           ("bool A::operator==(const A& a) const", "A::operator=="),
                           ("template <class T>\nstd::vector<T> F(T t)", "F"), ("TEST_F(A, B)", "TEST_F(A, B)"),
                           ("extern \"C\" int F()", "F"), ("int n::A::F(B b = {}) noexcept", "n::A::F")):
            with self.subTest(head=head):
                self.assertEqual(found_in(function_of(80, head)), [(1, "a.cc: " + name)])
        self.assertEqual(found_in("struct A {\n" + function_of(80, "int F()") + "};\n"), [(2, "a.cc: F")])
        self.assertEqual(found_in("namespace {\n" + function_of(80, "int F()") + "}\n"), [(2, "a.cc: F")])

    def test_braces_within_a_function_belong_to_it(self):
        inner = "  if (a) {\n    b = [] { return C{1}; };\n  }\n"
        self.assertEqual(found_in("int F() {\n" + inner * 30 + "}\n"), [(1, "a.cc: F")])
        self.assertEqual(found_in(("int F() {\n" + inner + "}\n") * 30), [])

    def test_long_classes_and_tables_are_no_functions(self):
        self.assertEqual(found_in("struct A {\n" + "  int a;\n" * 100 + "};\n"), [])
        self.assertEqual(found_in("const int kTable[] = {\n" + "  F(1),\n" * 100 + "};\n"), [])
        self.assertEqual(found_in("enum E {\n" + "  kA,\n" * 100 + "};\n"), [])


class FriendsTest(unittest.TestCase):

    def friends(self, declaration):
        return [key for _, key in found_in(f"namespace n {{\nclass A {{\n  {declaration}\n}};\n}}\n")]

    def test_classes_and_functions_elsewhere_are_refused_by_name(self):
        self.assertEqual(self.friends("friend class B;"), ["n::A befriends B"])
        self.assertEqual(self.friends("friend struct m::B;"), ["n::A befriends m::B"])
        self.assertEqual(self.friends("friend B;"), ["n::A befriends B"])
        self.assertEqual(self.friends("template <class T>\n  friend class B;"), ["n::A befriends B"])
        self.assertEqual(self.friends("friend int F(A* a);"), ["n::A befriends F"])

    def test_tests_may_be_friends(self):
        for text in ("friend class BTest;", "friend class BTestPeer;", "FRIEND_TEST(BTest, C);"):
            self.assertEqual(self.friends(text), [])

    def test_a_class_may_be_a_friend_of_what_is_nested_in_it(self):
        self.assertEqual(self.friends("class B {\n  friend class A;\n};"), [])
        self.assertEqual(self.friends("class B {\n  class C {\n  friend class A;\n};\n};"), [])
        self.assertEqual(self.friends("class B {\n  friend class C;\n};"), ["n::A::B befriends C"])

    def test_what_is_defined_in_the_class_is_a_part_of_it(self):
        self.assertEqual(self.friends("friend bool operator==(const A& a, const A& b) { return true; }"), [])
        self.assertEqual(self.friends("template <typename H>\n  friend H AbslHashValue(H h, const A& a) { return h; }"), [])


class ExceptionsTest(unittest.TestCase):

    def test_an_exception_is_not_reported_and_one_without_a_violation_is(self):
        found = sizes.violations("a.h", class_with(30) + class_with(30, "B"))
        refused, unused = sizes.without(found, {"n::A": "known", "n::C": "was split"})
        self.assertEqual([violation.key for violation in refused], ["n::B"])
        self.assertEqual(unused, ["n::C"])


if __name__ == "__main__":
    unittest.main()
